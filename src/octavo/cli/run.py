"""`octavo run`: answers to prompts, about a document if one is given."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.answers import Answer, answer_all, load_document, stream
from octavo.cli.options import engine_options, make_engine, make_sampling, sampling_options
from octavo.cli.output import Status, emit, json_option
from octavo.cli.text import prompts_or_stdin, read_text

if TYPE_CHECKING:
    from octavo import Engine, Sampling
    from octavo.engine.documents import Document

__all__ = ["command"]


@click.command("run")
@click.argument("model")
@click.option(
    "--prompt",
    "-p",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="What to ask; repeat it to ask several at once. Without it piped text is the prompt.",
)
@click.option(
    "--document", "path", metavar="FILE", help="A text that all prompts are about; it is computed once."
)
@click.option("--raw", is_flag=True, help="Continue the text: no chat template.")
@sampling_options
@engine_options
@json_option
def command(
    model: str, prompts: tuple[str, ...], path: str | None, raw: bool, as_json: bool, **options: Any
) -> None:
    """Answer prompts; text goes to stdout as it comes, everything else to stderr.

    Several prompts are answered at once, over shared pages of the document.
    """
    sampling = make_sampling(options)
    text = read_text(path) if path else None
    asked = prompts_or_stdin(prompts)
    with make_engine(model, options) as engine:
        document = load_document(engine, text, raw=raw) if text is not None else None
        if len(asked) == 1:
            answers = [one(engine, asked[0], sampling, document, raw, quiet=as_json)]
        else:
            answers = several(engine, asked, sampling, document, raw, quiet=as_json)
        if as_json:
            emit(
                {
                    "model": engine.name,
                    "recipe": engine.recipe.pair,
                    "answers": [a.as_dict() for a in answers],
                }
            )


def one(
    engine: Engine, prompt: str, sampling: Sampling, document: Document | None, raw: bool, *, quiet: bool
) -> Answer:
    start, answer = time.monotonic(), Answer("1")
    try:
        for text in stream(engine, prompt, sampling, answer, document=document, raw=raw):
            if not quiet:
                click.echo(text, nl=False)
    finally:
        if not quiet:
            click.echo()
    click.echo(answer.describe(time.monotonic() - start), err=True)
    return answer


def several(
    engine: Engine,
    prompts: list[str],
    sampling: Sampling,
    document: Document | None,
    raw: bool,
    *,
    quiet: bool,
) -> list[Answer]:
    start, status = time.monotonic(), Status()

    def on_step(answers: list[Answer]) -> None:
        done = sum(a.finish is not None for a in answers)
        tokens = sum(a.tokens for a in answers)
        status.show(f"{done} of {len(answers)} answers, {tokens:,} tokens")

    named = [(str(n), prompt) for n, prompt in enumerate(prompts, 1)]
    answers = answer_all(engine, named, sampling, document=document, raw=raw, on_step=on_step)
    status.clear()
    for answer, prompt in zip(answers, prompts, strict=True):
        if not quiet:
            click.echo(f"[{answer.name}] {prompt}\n{answer.text.strip()}\n")
        click.echo(f"[{answer.name}] {answer.describe(time.monotonic() - start)}", err=True)
    return answers
