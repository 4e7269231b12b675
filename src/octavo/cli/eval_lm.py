"""`octavo eval lm-eval`: tasks of lm-evaluation-harness."""

from __future__ import annotations

from importlib.util import find_spec
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
)
from octavo.cli.output import json_option
from octavo.errors import InvalidRequest

__all__ = ["command"]


@click.command("lm-eval")
@click.argument("model")
@click.option("--tasks", required=True, metavar="NAME,…", help="Tasks of the harness (`lm_eval ls tasks`).")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N samples of each task.")
@click.option(
    "--num-fewshot", type=click.IntRange(0), metavar="N", help="Worked examples before each sample."
)
@click.option("--apply-chat-template", is_flag=True, help="Put prompts through the chat template.")
@click.option(
    "--include-path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="A folder of your own task files.",
)
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Prompts at once.")
@click.option(
    "--max-length",
    type=click.IntRange(2),
    metavar="TOKENS",
    help="Context and continuation together.  [default: the model's]",
)
@formats_option("q8_0")
@bench_options
@json_option
def command(
    model: str,
    tasks: str,
    limit: int | None,
    num_fewshot: int | None,
    apply_chat_template: bool,
    include_path: Path | None,
    batch: int,
    max_length: int | None,
    formats: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Run any task of lm-evaluation-harness on the engine, once for each pair of formats."""
    if find_spec("lm_eval") is None:
        raise InvalidRequest("this needs lm-evaluation-harness; pip install 'octavo[lm-eval]'")
    recipes = make_recipes(formats, options)
    folder = out_folder(options, "lm-eval", model)
    bench = make_bench(model, options)
    from octavo.evaluation.harness import HarnessRun
    from octavo.evaluation.present import harness_report

    run = HarnessRun(
        tasks=tuple(name.strip() for name in tasks.split(",")),
        limit=limit,
        num_fewshot=num_fewshot,
        apply_chat_template=apply_chat_template,
        include_path=include_path,
    )
    rows, measures = [], []
    for recipe in recipes:
        with bench.serving(recipe, sequences=batch, context=max_length) as engine:
            found = run.run(engine, recipe.pair)
        rows += found[0]
        measures += found[1]
    setup = bench.setup(tasks=tasks, limit=limit, num_fewshot=num_fewshot)
    report = harness_report(rows, measures, setup)
    finish(report, folder, report.results, as_json)
