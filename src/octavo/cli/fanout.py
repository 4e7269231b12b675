"""`octavo bench fanout`: many agents over one document, against a private copy for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.agents import Cast, made_up, read_agents
from octavo.cli.answers import Answer, answer_all, load_document
from octavo.cli.options import engine_options, make_engine, on_command_line
from octavo.cli.output import Status, emit, json_option, size, table
from octavo.cli.text import read_text
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo import Engine
    from octavo.engine.documents import Document
    from octavo.model.shape import ModelShape

__all__ = ["command", "dense_bytes"]


@click.command("fanout")
@click.argument("model")
@click.option("--document", "path", required=True, metavar="FILE", help="The text that all agents read.")
@click.option(
    "--document-tokens", type=click.IntRange(1), metavar="TOKENS", help="Cut the document to this length."
)
@click.option(
    "--agents", type=click.IntRange(1), help="How many agents.  [default: all of --questions, or 4]"
)
@click.option("--questions", metavar="FILE", help="A TOML file with the agents (see examples/agents.toml).")
@click.option(
    "--suffix-tokens",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    metavar="TOKENS",
    help="Length of made-up prompts, without --questions.",
)
@click.option(
    "--max-tokens",
    "-n",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    metavar="TOKENS",
    help="Longest answer.",
)
@click.option(
    "--cold", is_flag=True, help="Pin no document: the agents arrive together, each with the whole text."
)
@engine_options
@json_option
def command(
    model: str,
    path: str,
    document_tokens: int | None,
    agents: int | None,
    questions: str | None,
    suffix_tokens: int,
    max_tokens: int,
    cold: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Let several agents read one document at once, and count tokens, pages and bytes.

    With --questions the agents ask what that file says and their answers are shown; otherwise each gets a
    made-up private prompt of --suffix-tokens tokens and writes --max-tokens tokens.
    """
    if questions and (option := on_command_line("suffix_tokens")):
        raise click.UsageError(f"{option} is the length of made-up prompts; with --questions there are none")
    text = read_text(path)
    cast = read_agents(questions, agents) if questions else None
    with make_engine(model, options) as engine:
        cast = cast or made_up(engine.tokenizer, agents or 4, suffix_tokens)
        tokens = engine.tokenizer.document(text, raw=cast.raw or not engine.tokenizer.has_chat)
        if document_tokens is not None and document_tokens > len(tokens):
            raise InvalidRequest(f"{path} has {len(tokens):,} tokens; {document_tokens:,} were asked for")
        fanout = Fanout(engine, cast, tokens[:document_tokens], max_tokens)
        found = fanout.run(cold)
    if as_json:
        emit(found)
    else:
        show(cast, found)


class Fanout:
    """One run: the agents over the document's tokens."""

    def __init__(self, engine: Engine, cast: Cast, tokens: list[int], max_tokens: int) -> None:
        self.engine = engine
        self.cast = cast
        self.tokens = tokens
        self.max_tokens = max_tokens

    def run(self, cold: bool) -> dict[str, Any]:
        """Read, answer and count; progress on stderr."""
        document = None if cold else load_document(self.engine, self.tokens, raw=True)
        start = time.monotonic()
        answers = self.answer(document)
        return self.count(answers, time.monotonic() - start)

    def answer(self, document: Document | None) -> list[Answer]:
        from octavo.engine.requests import Sampling

        status = Status()
        sampling = Sampling(self.max_tokens, stop=self.cast.stop, ignore_eos=not self.cast.agents[0].question)
        prompts = [(a.name, self.suffix(a.prompt)) for a in self.cast.agents]
        if document is None:
            prompts = [(name, [*self.tokens, *own]) for name, own in prompts]

        def on_step(answers: list[Answer]) -> None:
            status.show("answering: " + ", ".join(f"{a.name} {a.tokens}" for a in answers[:8]) + " tokens")

        answers = answer_all(self.engine, prompts, sampling, document=document, raw=True, on_step=on_step)
        status.done(f"{len(answers)} agents answered, {sum(a.tokens for a in answers):,} tokens")
        return answers

    def suffix(self, prompt: str | Sequence[int]) -> list[int]:
        """What follows the document, as tokens, so that a cold run and a cut document take the same way."""
        if not isinstance(prompt, str):
            return list(prompt)
        tokenizer = self.engine.tokenizer
        return tokenizer.after_document(prompt, raw=self.cast.raw or not tokenizer.has_chat)

    def count(self, answers: list[Answer], seconds: float) -> dict[str, Any]:
        """All numbers of the run, as one JSON document."""
        from octavo.formats.base import PAGE

        engine, stats, document = self.engine, self.engine.stats(), len(self.tokens)
        naive = [a.prompt_tokens + a.tokens - 1 for a in answers]  # the last token's keys are never stored
        shared = document // PAGE if len(answers) > 1 else 0
        return {
            "model": engine.name,
            "recipe": engine.recipe.pair,
            "agents": len(answers),
            "document_tokens": document,
            "tokens_computed": stats.tokens["computed"],
            "tokens_naive": sum(a.prompt_tokens for a in answers),
            "tokens_generated": sum(a.tokens for a in answers),
            "cells": stats.cells["peak"],
            "cells_naive": sum(naive),
            "ratio": sum(naive) / stats.cells["peak"],
            "bytes": stats.bytes["peak"],
            "bytes_dense": sum(dense_bytes(engine.shape, n) for n in naive),
            "pages_shared": shared,
            "pages_private": stats.cells["peak"] // PAGE - shared,
            "seconds": seconds,
            "tokens_per_s": stats.tokens_per_s,
            "backend": stats.backend,
            "answers": [a.as_dict() for a in answers],
        }


def dense_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of a contiguous 16-bit cache of one sequence; sliding layers keep their window only."""
    return sum(4 * g.kv_heads * g.head_dim * min(tokens, g.window or tokens) for g in shape.layers)


def show(cast: Cast, found: dict[str, Any]) -> None:
    if cast.agents[0].question:
        show_answers(cast, [a["text"].strip() for a in found["answers"]])
    rows = [
        saving("prompt tokens computed", found["tokens_computed"], found["tokens_naive"]),
        saving("token slots held", found["cells"], found["cells_naive"]),
        saving("KV bytes held", found["bytes"], found["bytes_dense"], size),
    ]
    click.echo(table(["", "octavo", f"{found['agents']} private 16-bit caches", "times fewer"], rows))
    speed = found["tokens_per_s"]
    click.echo(
        f"\n{found['document_tokens']:,} tokens of document in {found['pages_shared']:,} shared pages, "
        f"{found['pages_private']:,} open and private pages for {found['agents']} agents\n"
        f"{speed['prefill']:,.0f} tokens/s reading, {speed['decode']:,.1f} tokens/s writing; "
        f"pages {found['recipe']}, read by {found['backend']['name']}"
    )


def show_answers(cast: Cast, texts: list[str]) -> None:
    right = 0
    for agent, text in zip(cast.agents, texts, strict=True):
        fits = agent.expect.lower() in text.lower()
        right += fits
        mark = "" if fits else f"  [expected: {agent.expect}]"
        click.echo(f"\n{agent.name}: {agent.question}\n  {text}{mark}")
    if all(agent.expect for agent in cast.agents):
        click.echo(f"\n{right} of {len(texts)} answers hold what was expected.\n")


def saving(what: str, ours: int, naive: int, form: Callable[[int], str] = "{:,}".format) -> list[str]:
    return [what, form(ours), form(naive), f"{naive / ours:.1f}"]
