"""`octavo eval ladder`: speed, size and quality of recipes at growing contexts, in one table."""

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
from octavo.cli.output import Status, json_option

__all__ = ["command"]


@click.command("ladder")
@click.argument("model")
@click.option(
    "--contexts", type=NUMBERS, default="1024,2048", show_default=True, metavar="N,…", help="Prompt lengths."
)
@text_option("UTF-8 prose: the prompts, and what KLD is measured on.")
@click.option(
    "--max-tokens", type=click.IntRange(2), default=32, show_default=True, help="Tokens decoded in each run."
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Runs of each recipe and context, in alternation.",
)
@click.option(
    "--kld-tokens",
    type=click.IntRange(0),
    default=4096,
    show_default=True,
    metavar="N",
    help="Tokens for the KLD column; 0 leaves it out.",
)
@click.option(
    "--samples",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Needle prompts for the needle column; 0 leaves it out.",
)
@formats_option("q8_0,q8_0:q4_0,q4_0")
@bench_options
@json_option
def command(
    model: str,
    contexts: tuple[int, ...],
    path: Path,
    max_tokens: int,
    repeats: int,
    kld_tokens: int,
    samples: int,
    formats: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure contexts × format pairs: decode and prefill tokens/s, KV bytes, KLD and needle score.

    KLD that its validity control declares invalid ends the command before anything is timed.
    """
    recipes = make_recipes(formats, options)
    folder = out_folder(options, "ladder", model)
    bench = make_bench(model, options)
    dca = used_dca(bench, recipes[0], max(contexts) + max_tokens)
    from octavo.evaluation.ladder_run import LadderRun
    from octavo.evaluation.present import ladder_report
    from octavo.evaluation.windows import read_text

    status = Status()
    text = read_text(path, bench.loaded.tokenizer)
    run = LadderRun(bench, recipes, text, contexts, folder, progress_on(status))
    invalid, rows = run.run(kld_tokens=kld_tokens, samples=samples, max_tokens=max_tokens, repeats=repeats)
    status.clear()
    setup = bench.setup(text=text.sha256, text_name=path.name, dca=dca)
    report = ladder_report(rows, setup, invalid=invalid)
    finish(report, folder, report.results, as_json)
