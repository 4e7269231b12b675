"""Running requests in the foreground: documents with progress, one answer as a stream, several at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from octavo.cli.interrupt import interruptible
from octavo.cli.output import Status, count

if TYPE_CHECKING:
    from octavo import Engine
    from octavo.engine.documents import Document
    from octavo.engine.requests import Delta, FinishReason, Prompt, Sampling, Usage

__all__ = ["Answer", "answer_all", "load_document", "stream"]


class Answer:
    """One request's text so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.tokens = 0
        self.usage: Usage | None = None
        self.finish: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        """Take in what one step added. Raises the request's error."""
        if delta.error is not None:
            raise delta.error
        self.text += delta.text
        self.tokens += len(delta.tokens)
        self.usage, self.finish = delta.usage, delta.finish

    @property
    def prompt_tokens(self) -> int:
        return self.usage.prompt_tokens if self.usage else 0

    @property
    def cached_tokens(self) -> int:
        return self.usage.cached_tokens if self.usage else 0

    @property
    def context_shifted(self) -> int:
        return self.usage.context_shifted if self.usage else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "text": self.text,
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.tokens,
            "context_shifted": self.context_shifted,
        }

    def describe(self, seconds: float) -> str:
        """ "4,812 prompt tokens, 4,800 cached; 40 generated in 2.9 s"."""
        prompt = count(self.prompt_tokens, "prompt token")
        dropped = f", {self.context_shifted:,} dropped" if self.context_shifted else ""
        made = f"{self.tokens:,} generated in {seconds:.1f} s"
        return f"{prompt}, {self.cached_tokens:,} cached{dropped}; {made}"


def load_document(engine: Engine, text: str | Sequence[int], *, raw: bool = False) -> Document:
    """The document, computed and pinned; progress on stderr."""
    status, start = Status(), time.monotonic()
    document = engine.begin_document(text, raw=raw)
    total = document.tokens
    with interruptible() as check:
        while not document.ready:
            if document.error is not None:
                raise document.error
            check()
            status.show(f"reading the document: {document.sequence.computed:,} of {total:,} tokens")
            engine.advance()
    seconds = time.monotonic() - start
    status.done(
        f"read the document: {count(total, 'token')} in {seconds:.1f} s, {total / seconds:,.0f} tokens/s"
    )
    return document


def stream(
    engine: Engine,
    prompt: Prompt,
    sampling: Sampling,
    answer: Answer,
    *,
    document: Document | None = None,
    raw: bool = False,
) -> Iterator[str]:
    """The answer's text as it comes. Leaving early (Ctrl-C too) aborts the request and frees its pages."""
    with interruptible() as check, engine.stream(prompt, sampling, document=document, raw=raw) as deltas:
        for delta in deltas:
            answer.add(delta)
            yield delta.text
            check()


def answer_all(
    engine: Engine,
    prompts: Sequence[tuple[str, Prompt]],
    sampling: Sampling,
    *,
    document: Document | None = None,
    raw: bool = False,
    on_step: Callable[[list[Answer]], None] = lambda answers: None,
) -> list[Answer]:
    """Answers to all (name, prompt) pairs at once. Whatever stops it, no request stays behind."""
    running: dict[int, Answer] = {}
    answers: list[Answer] = []
    try:
        for name, prompt in prompts:
            request = engine.submit(prompt, sampling, document=document, raw=raw)
            running[request] = Answer(name)
            answers.append(running[request])
        with interruptible() as check:
            while running:
                check()
                for delta in engine.step():
                    running[delta.request].add(delta)
                    if delta.finish is not None:
                        del running[delta.request]
                on_step(answers)
    except BaseException:
        for request in running:
            engine.abort(request)
        raise
    return answers
