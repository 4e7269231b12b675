"""`octavo eval kld`: KLD of recipes against plain pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from octavo.cli.eval_options import (
    bench_options,
    finish,
    formats_option,
    make_bench,
    make_recipes,
    out_folder,
    progress_on,
    text_option,
    used_dca,
)
from octavo.cli.eval_types import NUMBERS
from octavo.cli.output import Status, check_folder, json_option

__all__ = ["command"]

SERVED_CHUNK, QUANTISED_CHUNK = 64, 512


@click.command("kld")
@click.argument("model")
@text_option("UTF-8 prose to score.")
@click.option(
    "--ctx", type=NUMBERS, default="2048", show_default=True, metavar="N[,N…]", help="Window lengths."
)
@formats_option("q8_0,q8_0:q4_0,q4_0")
@click.option(
    "--base",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Reference to use, or to make there (one --ctx).",
)
@click.option(
    "--all-quantised", is_flag=True, help="Read even the newest tokens as if packed, sliding layers too."
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Score whole windows of at most this many tokens together, but at least one.",
)
@click.option(
    "--chunk",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens a step; those of one step see each other exactly.  [default: 64; 512 with --all-quantised]",
)
@bench_options
@json_option
def command(
    model: str,
    path: Path,
    ctx: tuple[int, ...],
    formats: str,
    base: Path | None,
    all_quantised: bool,
    tokens: int | None,
    chunk: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Teacher-force a text and compare every next-token distribution with that of plain pages.

    A validity control (q8_0) and the noise floor (plain pages, another chunk size) always run. If the model
    and the text cannot judge formats, the result is INVALID: nothing is tabulated and the exit status is 1.
    """
    if base and len(ctx) > 1:
        raise click.UsageError("--base holds one window length; give one --ctx")
    if base and not base.exists():
        check_folder(base.parent, "--base")
    recipes = make_recipes(formats, options, **({"sliding": True} if all_quantised else {}))
    folder = out_folder(options, "kld", model)
    bench = make_bench(model, options, all_quantised=all_quantised)
    from octavo.evaluation.identity import version
    from octavo.evaluation.kld import KldRun
    from octavo.evaluation.present_kld import kld_report
    from octavo.evaluation.windows import cut, read_text
    from octavo.formats.base import PAGE

    text = read_text(path, bench.loaded.tokenizer)
    windows = [cut(text, length, tokens=tokens) for length in ctx]
    dca = used_dca(bench, recipes[0], max(ctx))
    status = Status()
    told = {"model": bench.loaded.identity, "tokenizer": text.tokens_sha256, "text": text.sha256}
    told |= bench.attention(recipes[0], max(ctx))
    chunk = chunk or (QUANTISED_CHUNK if all_quantised else SERVED_CHUNK)
    run = KldRun(
        engine=lambda recipe, step: bench.engine(recipe, tokens=max(ctx), chunk=step),
        identity={**told, "version": version(), "dtype": bench.loaded.shape.dtype},
        recipes=recipes,
        shape=bench.loaded.shape,
        folder=folder,
        chunk=chunk,
        noise_chunk=chunk + (PAGE if all_quantised else PAGE // 2),  # whole pages give the same sums
        progress=progress_on(status),
    )
    results = [run.run(each, base) for each in windows]
    status.clear()
    setup = bench.setup(**told, text_name=path.name, all_quantised=all_quantised, chunk=chunk)
    setup |= {"recipe": recipe_told(recipes), "dca": dca}
    report = kld_report(results, setup)
    finish(report, folder, report.results, as_json)


def recipe_told(recipes: list[Any]) -> dict[str, Any]:
    """What all recipes of a run have in common."""
    return {name: value for name, value in recipes[0].as_dict().items() if name not in ("k", "v", "layers")}
