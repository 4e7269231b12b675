"""`octavo calibrate`: a recipe file for one model, from what a text does to its keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.eval_options import device_option, dtype_option, progress_on, text_option, used_dca
from octavo.cli.options import cache_options, given, make_recipe
from octavo.cli.output import Status, check_folder, emit, json_option, shown

if TYPE_CHECKING:
    from octavo.evaluation.recipes import Made

__all__ = ["command"]


@click.command("calibrate")
@click.argument("model")
@text_option("UTF-8 text to calibrate on.")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The recipe to write, a .toml; statistics and scales go to a .safetensors beside it.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=16_384,
    show_default=True,
    metavar="N",
    help="Read at most this many tokens; the last quarter judges the recipe.",
)
@click.option(
    "--ctx",
    type=click.IntRange(65),
    default=2048,
    show_default=True,
    metavar="TOKENS",
    help="Length of the windows.",
)
@click.option("--scales", is_flag=True, help="Choose channel scales for the keys, too.")
@click.option(
    "--formats", metavar="K[:V]", help="KV formats of the recipe, the same as -ctk and -ctv.  [default: q8_0]"
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="BITS",
    help="Choose formats by layer, for at most so many stored bits a value.",
)
@cache_options
@device_option
@dtype_option("float32", "Dtype to calibrate in; the recipe then serves others too.")
@json_option
def command(
    model: str,
    path: Path,
    output: Path,
    tokens: int,
    ctx: int,
    scales: bool,
    formats: str | None,
    budget: float | None,
    device: str,
    dtype: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a recipe for MODEL: statistics of its keys and, if asked, channel scales or formats by layer.

    The recipe's KLD against plain pages is measured on the text's last quarter and kept as its evidence. If
    scales or formats by layer do worse there than without, the command says so; the file is written all the
    same, with what was asked for.
    """
    recipe = starting_recipe(formats, budget, options)
    if scales and not budget and not recipe.quantises_keys:
        raise click.UsageError(f"--scales would change nothing: keys are {recipe.k}; choose others with -ctk")
    if output.suffix != ".toml":
        raise click.UsageError(f"the recipe is a TOML file; write -o {output.with_suffix('.toml')}")
    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent} is no folder; make it first, or write -o elsewhere")
    check_folder(output.parent, "-o")
    from octavo.evaluation.recipes import make_recipe_file
    from octavo.evaluation.setup import open_bench
    from octavo.evaluation.windows import cut, read_text

    bench, status = open_bench(model, device=device, dtype=dtype, all_quantised=True), Status()
    used_dca(bench, recipe, ctx)
    windows = cut(read_text(path, bench.loaded.tokenizer), ctx, tokens=tokens)
    made = make_recipe_file(
        bench,
        recipe,
        windows,
        scales=scales,
        budget=budget,
        progress=progress_on(status),
    )
    made.file.write(output)
    status.clear()
    if as_json:
        emit({"recipe": str(output), **made.as_dict()})
    else:
        show(output, made)


def starting_recipe(formats: str | None, budget: float | None, options: dict[str, Any]) -> Any:
    """The recipe before scales and formats by layer are chosen."""
    named = given(options, {"k": None, "v": None, "layers": None})
    if budget and (formats or named):
        raise click.UsageError("--budget chooses the formats; leave out those you named")
    if formats and {"k", "v"} & set(named):
        raise click.UsageError("--formats is -ctk and -ctv in one; give it or them")
    recipe = make_recipe(options)
    if formats:
        pair = type(recipe).from_pair(formats)
        recipe = recipe.with_(k=pair.k, v=pair.v, layers=recipe.layers if "layers" in named else "")
    return recipe


def show(output: Path, made: Made) -> None:
    told = made.as_dict()
    click.echo(shown(f"{output}: {told['pair']}, {told['bits_per_value']:.3f} bits a value"))
    if told["layers"]:
        click.echo(f"layers: {told['layers']}")
    for name, value in told["kld"].items():
        click.echo(f"{name}: {value:.5f} nats, on {told['kld_tokens']:,} tokens that chose nothing")
    for warning in told["warnings"]:
        click.echo(f"warning: {warning}", err=True)
