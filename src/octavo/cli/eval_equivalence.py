"""`octavo eval equivalence`: whether a recipe changes what the model says."""

from __future__ import annotations

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
    used_dca,
)
from octavo.cli.eval_types import NUMBERS
from octavo.cli.output import Status, json_option

__all__ = ["command"]


@click.command("equivalence")
@click.argument("model")
@click.option(
    "--lengths",
    type=NUMBERS,
    default="2048",
    show_default=True,
    metavar="N,…",
    help="Tokens of the needle prompts.",
)
@click.option(
    "--samples", type=click.IntRange(1), default=20, show_default=True, help="Prompts of each length."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=32, show_default=True, help="Answer tokens compared."
)
@click.option("--chunk", type=click.IntRange(1), default=64, show_default=True, help="Tokens a step.")
@click.option("--seed", type=int, default=42, show_default=True)
@formats_option("q8_0,q8_0:q4_0")
@bench_options
@json_option
def command(
    model: str,
    lengths: tuple[int, ...],
    samples: int,
    max_tokens: int,
    chunk: int,
    seed: int,
    formats: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare short greedy answers to needle prompts, token by token along the reference's own answer."""
    recipes = make_recipes(formats, options)
    folder = out_folder(options, "equivalence", model)
    bench = make_bench(model, options)
    dca = used_dca(bench, recipes[0], max(lengths))
    from octavo.evaluation.equivalence import run_equivalence
    from octavo.evaluation.present import equivalence_report
    from octavo.evaluation.ruler import Fitter, Prompter, Sources, get_tasks

    status = Status()
    prompter, progress = Prompter(bench.loaded.tokenizer), progress_on(status)
    [task] = get_tasks(["niah_single_1"], Sources(), lambda text: len(text))
    prompts = [s for n in lengths for s in Fitter(task, prompter, n, seed=seed).samples(samples)]
    plain = recipes[0].with_(k="plain", v="plain")
    results = []
    for recipe in recipes:
        step = max(chunk, bench.prompt_chunk(recipe))
        with (
            bench.engine(plain, tokens=max(lengths), chunk=step) as reference,
            bench.engine(recipe, tokens=max(lengths), chunk=step) as candidate,
        ):
            show = lambda done, total, name=recipe.pair: progress(name, done, total)  # noqa: E731
            results.append(
                run_equivalence(
                    reference,
                    candidate,
                    prompts,
                    recipe.pair,
                    max_tokens=max_tokens,
                    chunk=chunk,
                    progress=show,
                )
            )
    status.clear()
    setup = bench.setup(seed=seed, lengths=list(lengths), samples=samples, dca=dca)
    report = equivalence_report(results, setup)
    finish(report, folder, report.results, as_json)
