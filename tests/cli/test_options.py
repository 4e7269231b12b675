"""Options exist for every setting, and their help tells the true defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields

import click

from octavo import Engine, Recipe, Sampling
from octavo.attention.backend import Backend
from octavo.attention.cuda import CudaBackend
from octavo.cli.app import octavo
from octavo.cli.options import ENGINE, RECIPE, SAMPLING
from octavo.cli.run import command

LIBRARY_ONLY = {"stop_token_ids", "logit_bias", "logprobs"}


def defaults() -> dict[str, str]:
    """Parameter → the default its help names."""
    found = {}
    for parameter in command.params:
        named = re.search(r"\[default: ([^\]]+)\]", getattr(parameter, "help", None) or "")
        if named and isinstance(parameter, click.Option) and parameter.name:
            found[parameter.name] = named[1]
    return found


def written(name: str, value: object) -> str:
    return (
        (name if value else f"no-{name}")
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def test_every_recipe_field_has_an_option_with_its_default() -> None:
    shown = defaults()
    assert list(Recipe.names()) == list(RECIPE)
    default = {f.name: written(f.name, f.default) for f in fields(Recipe) if f.name in RECIPE}
    assert {n: shown.get(n, "") for n in RECIPE} == default


def test_every_sampling_field_has_an_option_with_its_default() -> None:
    shown = defaults()
    assert {f.name for f in fields(Sampling)} - LIBRARY_ONLY == set(SAMPLING)
    for field in fields(Sampling):
        if field.name in shown:
            assert field.default is not MISSING and shown[field.name] == written(field.name, field.default)


def test_engine_options_are_engine_arguments() -> None:
    arguments = inspect.signature(Engine).parameters
    shown = defaults()
    assert set(ENGINE) <= set(arguments)
    for name in ("device", "dtype"):
        assert shown[name] == str(arguments[name].default)
    for most in (CudaBackend.prompt_chunk, Backend.prompt_chunk):
        assert str(most) in shown["chunk"]


def verbs(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    context = command.context_class(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            assert below is not None
            yield from verbs(below, verb, context)


def test_help_names_only_options_that_the_verb_has() -> None:
    """Options are shared between verbs, and so is their help."""
    lacking = []
    for verb in verbs(octavo, "octavo"):
        params = verb.command.get_params(verb)
        own = {name for param in params for name in (*param.opts, *param.secondary_opts)}
        for text in [verb.command.help, *(getattr(param, "help", None) for param in params)]:
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text or ""))
            lacking += [f"{verb.command_path}: {name} in {text!r}" for name in sorted(named - own)]
    assert lacking == []
