"""`octavo chat`: a conversation; what was said before is read from pages, not computed again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.answers import Answer, load_document, stream
from octavo.cli.options import engine_options, make_engine, make_sampling, sampling_options
from octavo.cli.text import read_text
from octavo.errors import InvalidRequest, PromptTooLong

if TYPE_CHECKING:
    from octavo import Engine, Sampling
    from octavo.engine.documents import Document

__all__ = ["command"]

HELP = "/reset starts anew, /exit or Ctrl-D ends; Ctrl-C stops an answer"


@click.command("chat")
@click.argument("model")
@click.option("--system", metavar="TEXT", help="A system message.")
@click.option("--document", "path", metavar="FILE", help="A text that the conversation is about.")
@sampling_options
@engine_options
def command(model: str, system: str | None, path: str | None, **options: Any) -> None:
    """Talk with a model, one line a turn.

    Works in a pipe as well: every line of stdin is a turn. /reset starts anew, /exit ends.
    """
    sampling = make_sampling(options)
    text = read_text(path) if path else None
    with make_engine(model, options) as engine:
        if not engine.tokenizer.has_chat:
            raise InvalidRequest(
                f"{engine.name} has no chat template, so it cannot hold a conversation; "
                f"use octavo run {model} --raw -p TEXT"
            )
        document = load_document(engine, text) if text is not None else None
        Conversation(engine, sampling, system, document).hold(lines())


def lines() -> Iterator[str]:
    """The user's lines; a prompt is shown on a terminal only."""
    terminal = sys.stdin.isatty()
    if terminal:
        click.echo(HELP, err=True)
    while True:
        if terminal:
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


class Conversation:
    """The messages so far, and the engine that answers them."""

    def __init__(
        self, engine: Engine, sampling: Sampling, system: str | None, document: Document | None
    ) -> None:
        self.engine = engine
        self.sampling = sampling
        self.document = document
        self.opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.opening)

    def hold(self, turns: Iterator[str]) -> None:
        """Answer turn after turn until they end or one says /exit."""
        for turn in turns:
            if turn in ("/exit", "/quit"):
                return
            if turn == "/reset":
                self.messages = list(self.opening)
            elif turn.startswith("/"):
                click.echo(f"unknown command {turn.split()[0]!r}; {HELP}", err=True)
            else:
                self.answer(turn)

    def answer(self, turn: str) -> None:
        """Print the answer to `turn`; what an interrupted one said so far stays in the conversation."""
        start, answer = time.monotonic(), Answer("assistant")
        self.messages.append({"role": "user", "content": turn})
        try:
            for text in stream(self.engine, self.messages, self.sampling, answer, document=self.document):
                click.echo(text, nl=False)
        except KeyboardInterrupt:
            click.echo("\n[stopped]", err=True)
        except PromptTooLong as error:
            self.messages.pop()
            hint = "/reset starts anew, and --context-shift would drop the oldest turns"
            click.echo(f"{error}; {hint}", err=True)
            return
        else:
            click.echo()
            click.echo(f"[{answer.describe(time.monotonic() - start)}]", err=True)
        self.messages.append({"role": "assistant", "content": answer.text})
