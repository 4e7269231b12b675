"""`octavo eval mrcr`: OpenAI's multi-round coreference data, from the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from octavo.cli.eval_options import (
    attention_told,
    bench_options,
    finish,
    formats_option,
    make_recipes,
    out_folder,
    progress_on,
    used_dca,
)
from octavo.cli.eval_types import FILE
from octavo.cli.eval_url import answerer_of, url_options
from octavo.cli.output import Status, json_option

__all__ = ["command"]


@click.command("mrcr")
@click.argument("model")
@click.option(
    "--data", type=FILE, required=True, metavar="FILE", help="Rows as published, .parquet or .jsonl."
)
@click.option(
    "--max-length",
    type=click.IntRange(1),
    default=131072,
    show_default=True,
    metavar="TOKENS",
    help="Leave longer conversations out.",
)
@click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True, help="Conversations that run at once."
)
@formats_option("q8_0")
@url_options
@bench_options
@json_option
def command(
    model: str, data: Path, max_length: int, batch: int, formats: str, as_json: bool, **options: Any
) -> None:
    """Score MRCR by number of needles and length bin."""
    from octavo.evaluation.identity import file_sha256
    from octavo.evaluation.mrcr import read_mrcr, run_mrcr
    from octavo.evaluation.plots import require_plots
    from octavo.evaluation.present import mrcr_report

    require_plots()
    recipes = make_recipes(formats, options)
    folder = out_folder(options, "mrcr", model)
    source = answerer_of(model, options, tokens=max_length, batch=batch)
    status = Status()
    rows = read_mrcr(data, source.tokenizer)
    dca = used_dca(source.bench, recipes[0], max_length) if source.bench else None
    setup = source.setup(data=file_sha256(data), data_name=data.name, dca=dca)
    asked = {name: setup[name] for name in ("model", "data", "version")}
    found: list[dict[str, Any]] = []
    invalid: list[str] = []
    progress = progress_on(status)
    for recipe in recipes if source.local else recipes[:1]:
        with source.open(recipe) as (answerer, target):
            log = source.log(folder, recipe, target, asked | attention_told(dca))
            show = lambda done, total, name=target: progress(name, done, total)  # noqa: E731
            found += run_mrcr(rows, answerer, log, target, context=max_length, progress=show)
        invalid += [f"{target}: {log.unanswered}"] if log.unanswered else []
    status.clear()
    report = mrcr_report(found, setup).judged(invalid)
    finish(report, folder, report.results, as_json)
