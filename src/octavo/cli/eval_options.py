"""Options and output that the commands of `octavo eval` share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.eval_types import TEXT, each_once
from octavo.cli.options import RECIPE, on_command_line, shared
from octavo.cli.output import Status, check_folder, emit, shown

if TYPE_CHECKING:
    from octavo.evaluation.report import Report
    from octavo.evaluation.setup import Bench
    from octavo.recipe import Recipe

__all__ = [
    "always_dca_options",
    "bench_options",
    "device_option",
    "dtype_option",
    "finish",
    "formats_option",
    "make_bench",
    "make_recipes",
    "out_folder",
    "progress_on",
    "recipe_settings",
    "text_option",
    "used_dca",
]

Option = Callable[[Callable[..., Any]], Any]
"""A decorator that gives a command an option."""


ON_OFF = click.Choice(["on", "off"])
SWITCHES = ("centre", "rotate", "sliding")
SETTINGS = ("recent", "exact_pages", *SWITCHES, "k_gain", "v_gain", "dca", "dca_chunk", "dca_mscale")

device_option = click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:1 or auto."
)


def dtype_option(default: str, help: str) -> Option:
    """--dtype."""
    dtypes = click.Choice(["auto", "float32", "bfloat16", "float16"])
    return click.option("--dtype", type=dtypes, default=default, show_default=True, help=help)


def text_option(help: str) -> Option:
    """--text: the file to read, as `path`."""
    return click.option("--text", "path", type=TEXT, required=True, metavar="FILE", help=help)


BENCH = (
    click.option(
        "--recipe",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Measure this recipe; of --formats then only those that are given, with its other settings.",
    ),
    click.option(
        "--recent",
        type=click.IntRange(0),
        metavar="TOKENS",
        help="Tokens that must follow a complete page before it is packed.  [default: 64]",
    ),
    click.option(
        "--exact-pages",
        type=click.IntRange(0),
        metavar="PAGES",
        help="Pages at a sequence's start that are never packed.  [default: 1]",
    ),
    click.option("--centre", type=ON_OFF, help="Keep each page's mean key apart.  [default: on]"),
    click.option(
        "--rotate", type=ON_OFF, help="Hadamard rotation of quantised keys and values.  [default: on]"
    ),
    click.option("--sliding", type=ON_OFF, help="Pack sliding-window layers too.  [default: off]"),
    click.option("--k-gain", metavar="RULE", help="Gain rule of turbo keys: norm, mmse or unbiased."),
    click.option("--v-gain", metavar="RULE", help="Gain rule of turbo values."),
    *(RECIPE[name] for name in ("dca_chunk", "dca_mscale")),
    device_option,
    dtype_option("auto", "Dtype of weights and plain pages."),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Report folder; the same folder takes up an interrupted run.  [default: reports/COMMAND-MODEL]",
    ),
)


bench_options = shared((RECIPE["dca"], *BENCH))
"""The recipe's settings, device, dtype and report folder."""

always_dca_options = shared(BENCH)
"""The same for a command whose --dca is its own."""


def formats_option(default: str) -> Option:
    """--formats: pairs of KV formats."""
    return click.option(
        "--formats",
        default=default,
        show_default=True,
        metavar="K[:V],…",
        help="KV formats to measure: one for both sides, or keys:values (`octavo formats`).",
    )


def recipe_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The recipe fields that the user gave a value."""
    given = {name: options[name] for name in SETTINGS if options.get(name) is not None}
    return {name: value == "on" if name in SWITCHES else value for name, value in given.items()}


def make_recipes(formats: str, options: dict[str, Any], **defaults: Any) -> list[Recipe]:
    """One recipe a pair, after that of --recipe; none may be named twice.

    Raises UnknownName for a format that does not exist.
    """
    from octavo.recipe import Recipe

    given = recipe_settings(options)
    path = options.get("recipe")
    base = Recipe.load(path) if path else Recipe(**defaults)
    base = base.with_(**given)
    if path and not is_given("formats"):
        return [base]
    pairs = [Recipe.from_pair(pair.strip()) for pair in formats.split(",")]
    recipes = [*([base] if path else []), *(base.with_(k=pair.k, v=pair.v) for pair in pairs)]
    each_once("--formats", [recipe.pair for recipe in recipes])
    return recipes


def is_given(option: str) -> bool:
    """Whether the user gave an option of the running command a value."""
    return click.get_current_context().get_parameter_source(option) != click.core.ParameterSource.DEFAULT


def make_bench(model: str, options: dict[str, Any], *, all_quantised: bool = False) -> Bench:
    """The loaded model. Checks first that the report can be drawn."""
    from octavo.evaluation.plots import require_plots
    from octavo.evaluation.setup import open_bench

    require_plots()
    return open_bench(model, device=options["device"], dtype=options["dtype"], all_quantised=all_quantised)


def out_folder(options: dict[str, Any], kind: str, model: str) -> Path:
    """--out, or a folder named after command and model. Raises InvalidFile where it cannot be written."""
    given: Path | None = options["out"]
    folder = given or Path("reports") / f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', model).strip('-')}"
    check_folder(folder, "--out")
    return folder


def progress_on(status: Status) -> Callable[[str, int, int], None]:
    """A progress function that keeps a bar on stderr."""

    def show(what: str, done: int, total: int) -> None:
        filled = 20 * done // max(total, 1)
        status.show(f"{what}  [{'#' * filled}{'.' * (20 - filled)}] {done}/{total}")

    return show


def used_dca(bench: Bench, recipe: Recipe, tokens: int) -> dict[str, Any] | None:
    """Dual Chunk Attention of engines for sequences of `tokens`; its settings are refused where it is off."""
    dca = bench.dual_chunk(recipe, tokens)
    if dca is None and (option := on_command_line("dca_chunk", "dca_mscale")):
        trained = bench.loaded.shape.context
        why = "--dca is off" if recipe.dca == "off" else f"{tokens} tokens are within the {trained} trained"
        raise click.UsageError(f"{option} would change nothing: {why}; leave it out, or add --dca on")
    return dca


def attention_told(dca: dict[str, Any] | None) -> dict[str, Any]:
    """What answers depend on in Dual Chunk Attention; nothing where it is off."""
    return {"dca": {name: dca[name] for name in ("chunk", "mscale")}} if dca else {}


def finish(report: Report, folder: Path, document: dict[str, Any], as_json: bool) -> None:
    """Write the report, print it (or its JSON line), and leave with status 1 if it is invalid."""
    from octavo.evaluation.report import plain_data

    report.write(folder)
    if as_json:
        emit(plain_data({**document, "report": str(folder)}))
    else:
        show(report)
        click.echo(shown(f"\nreport: {folder / 'index.html'}"))
    if report.invalid:
        click.get_current_context().exit(1)


def show(report: Report) -> None:
    """The report's tables on the terminal."""
    from octavo.evaluation.report import number

    for reason in report.invalid:
        click.echo(f"INVALID: {reason}")
    for part in report.tables:
        click.echo(f"\n{part.title}")
        click.echo(aligned([part.header, *[[number(cell) for cell in row] for row in part.rows]]))
    for note in report.notes:
        click.echo(note)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns to the right, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)
