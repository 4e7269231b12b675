"""`octavo eval ppl`: perplexity by position, with Dual Chunk Attention and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from octavo.cli.eval_options import (
    always_dca_options,
    finish,
    formats_option,
    make_bench,
    make_recipes,
    out_folder,
    progress_on,
    text_option,
)
from octavo.cli.eval_types import NUMBERS
from octavo.cli.output import Status, json_option

__all__ = ["command"]


@click.command("ppl")
@click.argument("model")
@text_option("Long UTF-8 prose to score.")
@click.option(
    "--ctx",
    metavar="N[,N…]",
    default="ladder",
    show_default=True,
    help="Window lengths; ladder is 1, 2, 4 and 8 times the trained length, as far as the text goes.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Score as many windows of each length as hold this many tokens.  [default: one window]",
)
@click.option(
    "--chunk", type=click.IntRange(1), default=512, show_default=True, metavar="TOKENS", help="Tokens a step."
)
@click.option(
    "--dca",
    type=click.Choice(["both", "on", "off"]),
    default="both",
    show_default=True,
    help="Dual Chunk Attention.",
)
@formats_option("plain")
@always_dca_options
@json_option
def command(
    model: str,
    path: Path,
    ctx: str,
    tokens: int | None,
    chunk: int,
    formats: str,
    dca: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Score a text far beyond the trained length, with Dual Chunk Attention, without it, or both.

    Within two chunks both must agree; where they do not, the result is INVALID: nothing is tabulated and the
    exit status is 1.
    """
    from octavo.evaluation.ppl import PplRun
    from octavo.evaluation.present_ppl import ppl_report
    from octavo.evaluation.windows import cut, read_text
    from octavo.recipe.dca import resolve_dca

    recipes = make_recipes(formats, options)
    folder = out_folder(options, "ppl", model)
    bench = make_bench(model, options)
    text, trained = read_text(path, bench.loaded.tokenizer), bench.loaded.shape.context
    longest = len(text.tokens) + len(text.prefix)
    if ctx == "ladder":
        lengths = [n for n in (trained * s for s in (1, 2, 4, 8)) if n <= longest] or [min(trained, longest)]
    else:
        lengths = list(NUMBERS.convert(ctx, None, click.get_current_context()))
    longer = [bench.dual_chunk(recipes[0].with_(dca="on"), n) for n in lengths] if dca != "off" else []
    windows = [cut(text, length, tokens=max(tokens or 0, length)) for length in lengths]
    status = Status()
    run = PplRun(
        engine=lambda recipe, tokens: bench.engine(recipe, tokens=tokens, chunk=chunk),
        recipes=recipes,
        modes=("off", "on") if dca == "both" else (dca,),
        trained=trained,
        vocab=bench.loaded.shape.vocab,
        chunk=chunk,
        progress=progress_on(status),
    )
    exact = resolve_dca(recipes[0].with_(dca="on"), trained, None)
    within = min(2 * exact.chunk if exact else trained, longest)
    validity, control = run.control(cut(text, within, tokens=within))
    if validity.valid:
        for each in windows:
            run.run(each)
    status.clear()
    told = {"model": bench.loaded.identity, "text": text.sha256, "text_name": path.name, "trained": trained}
    setup = bench.setup(**told, chunk=chunk, recipe=recipes[0].as_dict(), dca=longer[-1] if longer else None)
    report = ppl_report(run.found, control, validity, setup)
    finish(report, folder, report.results, as_json)
