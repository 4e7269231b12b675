"""`octavo eval ruler`: the thirteen RULER tasks, on this engine or on a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from octavo.cli.eval_types import FILE, NUMBERS, TEXT, each_once
from octavo.cli.eval_url import answerer_of, url_options
from octavo.cli.output import Status, json_option

if TYPE_CHECKING:
    from octavo.evaluation.measures import Measure

__all__ = ["command"]


@click.command("ruler")
@click.argument("model")
@click.option(
    "--tasks", default="niah_single_1,vt", show_default=True, metavar="NAME,…", help="Tasks, or all."
)
@click.option(
    "--lengths",
    type=NUMBERS,
    default="4096",
    show_default=True,
    metavar="N,…",
    help="Tokens of prompt and answer together.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="Samples of each task and length.",
)
@click.option("--seed", type=int, default=42, show_default=True)
@click.option(
    "--prompting",
    type=click.Choice(["auto", "chat", "base"]),
    default="auto",
    show_default=True,
    help="Through the chat template, or as plain text.",
)
@click.option("--essay", type=TEXT, metavar="FILE", help="Long prose for the essay haystacks.")
@click.option("--squad", type=FILE, metavar="FILE", help="SQuAD 2.0 (dev-v2.0.json) for qa_1.")
@click.option(
    "--hotpotqa", type=FILE, metavar="FILE", help="HotpotQA (hotpot_dev_distractor_v1.json) for qa_2."
)
@click.option(
    "--batch", type=click.IntRange(1), default=8, show_default=True, help="Prompts that run at once."
)
@formats_option("q8_0")
@url_options
@bench_options
@json_option
def command(
    model: str,
    tasks: str,
    lengths: tuple[int, ...],
    samples: int,
    seed: int,
    prompting: str,
    essay: Path | None,
    squad: Path | None,
    hotpotqa: Path | None,
    batch: int,
    formats: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Score RULER tasks at several lengths.

    With --url a server answers; MODEL then only names the tokenizer that lengths are counted in.
    """
    from octavo.evaluation.identity import file_sha256
    from octavo.evaluation.plots import require_plots
    from octavo.evaluation.present import ruler_report
    from octavo.evaluation.ruler import TASK_NAMES, Prompter, Sources, get_tasks
    from octavo.evaluation.ruler.run import RulerRun

    require_plots()
    recipes = make_recipes(formats, options)
    folder = out_folder(options, "ruler", model)
    names = TASK_NAMES if tasks == "all" else [name.strip() for name in tasks.split(",")]
    each_once("--tasks", names)
    source = answerer_of(model, options, tokens=max(lengths), batch=batch)
    status = Status()
    prompter = Prompter(source.tokenizer, chat=None if prompting == "auto" else prompting == "chat")
    sources = Sources(essay, squad, hotpotqa)
    chosen = get_tasks(names, sources, lambda text: len(source.tokenizer.encode(text, special=False)))
    run = RulerRun(chosen, lengths, samples, prompter, seed, progress_on(status))
    run.check()
    dca = used_dca(source.bench, recipes[0], max(lengths)) if source.bench else None
    data = {name: file_sha256(path) for name, path in vars(sources).items() if path}
    told = {"seed": seed, "prompting": "chat" if prompter.chat else "base"} | ({"data": data} if data else {})
    setup = source.setup(**told, samples=samples, dca=dca)
    asked = told | {name: setup[name] for name in ("model", "version")}
    rows: list[dict[str, Any]] = []
    measures: list[Measure] = []
    invalid: list[str] = []
    for recipe in recipes if source.local else recipes[:1]:
        with source.open(recipe) as (answerer, target):
            log = source.log(folder, recipe, target, asked | attention_told(dca))
            cells = run.run(answerer, log, target)
        invalid += [f"{target}: {log.unanswered}"] if log.unanswered else []
        rows += [cell.as_row() for cell in cells]
        measures += [cell.measure for cell in cells]
    status.clear()
    finish(ruler_report(rows, measures, setup).judged(invalid), folder, {"rows": rows}, as_json)
