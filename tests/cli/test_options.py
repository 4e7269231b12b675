"""Options exist for every setting, and their help tells the true defaults."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields

import click

from octavo import Engine, Recipe, Sampling
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
    for name in ("chunk", "device", "dtype"):
        assert shown[name] == str(arguments[name].default)
