"""Options that several commands share, and the engine and sampling they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from octavo import Engine, Recipe, Sampling

__all__ = [
    "announce_conversion",
    "cache_options",
    "engine_options",
    "make_engine",
    "make_recipe",
    "make_sampling",
    "sampling_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])

# None means "not given": the defaults live in Recipe, Engine and Sampling alone.
RECIPE = {
    "k": click.option(
        "--cache-type-k",
        "-ctk",
        "k",
        metavar="FORMAT",
        help="KV format of the keys, from `octavo formats`.  [default: q8_0]",
    ),
    "v": click.option(
        "--cache-type-v", "-ctv", "v", metavar="FORMAT", help="KV format of the values.  [default: q8_0]"
    ),
    "recent": click.option(
        "--recent",
        type=int,
        metavar="TOKENS",
        help="Tokens that must follow a complete page before it is packed.  [default: 64]",
    ),
    "exact_pages": click.option(
        "--exact-pages",
        type=int,
        metavar="PAGES",
        help="Pages at a sequence's start that are never packed.  [default: 1]",
    ),
    "rotate": click.option(
        "--rotate/--no-rotate",
        default=None,
        help="Hadamard rotation of quantised keys and values.  [default: rotate]",
    ),
    "centre": click.option(
        "--centre/--no-centre",
        default=None,
        help="Keep each page's mean key apart, in 8 bits.  [default: centre]",
    ),
    "k_gain": click.option(
        "--k-gain", metavar="RULE", help="Gain rule of turbo keys: norm, mmse or unbiased.  [default: norm]"
    ),
    "v_gain": click.option(
        "--v-gain", metavar="RULE", help="Gain rule of turbo values.  [default: unbiased]"
    ),
    "sliding": click.option(
        "--sliding/--no-sliding", default=None, help="Pack sliding-window layers too.  [default: no-sliding]"
    ),
    "dca": click.option(
        "--dca",
        metavar="WHEN",
        help="Dual Chunk Attention: auto (where sequences may exceed the trained length), on or off.  "
        "[default: auto]",
    ),
    "dca_chunk": click.option(
        "--dca-chunk",
        type=int,
        metavar="TOKENS",
        help="Its chunk length, a multiple of 64; 0 is a quarter of the trained length.  [default: 0]",
    ),
    "dca_mscale": click.option(
        "--dca-mscale",
        type=float,
        metavar="FACTOR",
        help="Its attention temperature: scores are multiplied by the square.  [default: 1]",
    ),
    "layers": click.option(
        "--layers", metavar="N[-N]=K[:V],…", help='Formats of single layers, such as "0-1=q8_0,29=q8_0:q4_0".'
    ),
}
"""Recipe field → its option."""

ENGINE = {
    "memory": click.option(
        "--memory", metavar="SIZE", help="Budget of the pool, such as 800MB or 4GB.  [default: what is free]"
    ),
    "context": click.option(
        "--context",
        type=click.IntRange(2),
        metavar="TOKENS",
        help="Longest sequence.  [default: the model's; with --dca on what the pool holds]",
    ),
    "chunk": click.option(
        "--chunk",
        type=click.IntRange(1),
        metavar="TOKENS",
        help="Most prompt tokens of a step; beside decoding sequences a quarter (at least 512).  "
        "[default: 8192 with GPU kernels, fewer in a small pool; else 512]",
    ),
    "device": click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 or auto.  [default: auto]"),
    "dtype": click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Dtype of weights and plain pages.  [default: auto]",
    ),
    "compile": click.option(
        "--compile", is_flag=True, default=None, help="Compile decoding first: a minute, then faster (GPU)."
    ),
    "strict": click.option(
        "--strict", is_flag=True, default=None, help="Refuse to run without the GPU kernels."
    ),
}
"""Engine argument → its option."""

SAMPLING = {
    "max_tokens": click.option(
        "--max-tokens", "-n", type=int, metavar="TOKENS", help="Longest answer.  [default: 256]"
    ),
    "temperature": click.option(
        "--temperature", type=float, help="0 takes the most likely token.  [default: 0]"
    ),
    "top_p": click.option(
        "--top-p", type=float, help="Keep the likeliest tokens up to this probability.  [default: 1]"
    ),
    "top_k": click.option(
        "--top-k", type=int, help="Keep this many of the likeliest tokens; 0 keeps all.  [default: 0]"
    ),
    "min_p": click.option(
        "--min-p", type=float, help="Drop tokens below this part of the likeliest one.  [default: 0]"
    ),
    "seed": click.option("--seed", type=int, help="Makes sampling repeatable."),
    "stop": click.option(
        "--stop", multiple=True, metavar="TEXT", help="End the answer before this text (repeatable)."
    ),
    "presence_penalty": click.option(
        "--presence-penalty", type=float, help="Between -2 and 2.  [default: 0]"
    ),
    "frequency_penalty": click.option(
        "--frequency-penalty", type=float, help="Between -2 and 2.  [default: 0]"
    ),
    "context_shift": click.option(
        "--context-shift",
        is_flag=True,
        default=None,
        help="Drop the oldest tokens when the context is full (with --dca on).",
    ),
    "keep": click.option(
        "--keep", type=int, metavar="TOKENS", help="Tokens at the start that stay then.  [default: 64]"
    ),
    "ignore_eos": click.option(
        "--ignore-eos", is_flag=True, default=None, help="Go on after the model ends its answer."
    ),
}
"""Sampling field → its option."""


def shared(options: Iterable[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """A decorator that gives a command all `options`, shown in their order."""
    last_first = tuple(options)[::-1]

    def decorate(command: Command) -> Command:
        for option in last_first:
            command = option(command)
        return command

    return decorate


RECIPE_FILE = click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A recipe file (`octavo calibrate`). Options beside it win; formats then hold in all layers.",
)

cache_options = shared((RECIPE_FILE, *RECIPE.values()))
engine_options = shared((RECIPE_FILE, *RECIPE.values(), *ENGINE.values()))
sampling_options = shared(SAMPLING.values())


def given(options: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Those of `names` that the user gave a value."""
    return {name: options[name] for name in names if options.get(name) not in (None, ())}


def on_command_line(*names: str) -> str | None:
    """The first of these parameters that was given on the command line, as it is spelled; else None."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is click.core.ParameterSource.COMMANDLINE:
            return option.opts[-1]
    return None


def make_recipe(options: dict[str, Any]) -> Recipe:
    """The recipe that the cache options ask for: the file's, if there is one, with what was given beside it.

    Raises UnknownName for a format that does not exist, InvalidFile for a file that is no recipe.
    """
    from octavo.recipe import Recipe

    path = options.get("recipe")
    return (Recipe.load(path) if path else Recipe()).with_(**given(options, RECIPE))


def make_sampling(options: dict[str, Any]) -> Sampling:
    """The sampling that the options ask for."""
    from octavo.engine.requests import Sampling

    return Sampling(**given(options, SAMPLING))


def make_engine(model: str, options: dict[str, Any], **settings: Any) -> Engine:
    """An engine as the options ask for it; the recipe is checked before weights are read."""
    recipe = make_recipe(options)
    announce_conversion(model)
    from octavo import Engine

    engine = Engine(model, recipe, **given(options, ENGINE), **settings)
    if engine.dca is not None:
        click.echo(engine.dca, err=True)
    elif given(options, {"dca_chunk": None, "dca_mscale": None}):
        told = f"a context of {engine.context} is within the {engine.shape.context} tokens trained"
        why = "--dca off" if recipe.dca == "off" else f"{told}; --dca on asks for it"
        click.echo(f"Dual Chunk Attention stays off: {why}", err=True)
    return engine


def announce_conversion(model: str) -> None:
    """Say why the first use of a built-in model takes long."""
    from octavo.model.builtin import BUILTINS

    built_in = BUILTINS.get(model)
    if built_in is not None and built_in.installed and built_in.converted is None:
        click.echo(f"converting {model} from GGUF; this happens once and takes about a minute", err=True)
