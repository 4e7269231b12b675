"""A scripted engine: characters are tokens, answers follow from prompts, and nothing is computed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.engine.requests import Delta, FinishReason, Prompt, Sampling, TokenLogprob, Usage
from octavo.errors import (
    DocumentInUse,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    UnknownDocument,
)

PAGE = 64


class Tokenizer:
    """One character, one token."""

    has_chat = True
    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return [min(ord(char), 255) for char in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


@dataclass
class Recipe:
    pair: str = "q8_0:q4_0"


@dataclass
class Document:
    name: str
    tokens: int
    raw: bool
    created: float = field(default_factory=time.time)
    users: int = 0

    @property
    def pages(self) -> int:
        return -(-self.tokens // PAGE)

    @property
    def bytes(self) -> int:
        return self.tokens * 100


class Stats:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def as_dict(self) -> dict[str, Any]:
        return self.values


@dataclass
class FakeEngine:
    """Both engines in one. The attributes script it; `seen` keeps what it was asked."""

    name: str = "org/fake"
    context: int = 4096
    max_requests: int = 64
    max_waiting: int = 1024
    step_s: float = 0.0
    refuse: Exception | None = None
    crash: tuple[int, Exception] | None = None
    crash_in_delta: bool = False
    hang_at: int | None = None
    abort_at: int | None = None

    def __post_init__(self) -> None:
        self.tokenizer, self.recipe = Tokenizer(), Recipe()
        self.documents: dict[str, Document] = {}
        self.running: dict[int, int] = {}
        self.seen: list[tuple[Prompt, Sampling]] = []
        self.finished = self.aborted = self.generated = 0
        self.closed, self.hanging = False, 0
        self._ids = itertools.count()

    @property
    def live_pages(self) -> int:
        held = sum(document.pages for document in self.documents.values())
        return held + sum(-(-tokens // PAGE) for tokens in self.running.values())

    def tokens_of(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if all(isinstance(token, int) for token in prompt):
            return list(prompt)  # type: ignore[arg-type]
        return self.tokenizer.encode("\n".join(f"{m['role']}: {m['content']}" for m in prompt))  # type: ignore[index]

    async def samples(
        self, prompt: Prompt, samplings: Sequence[Sampling], **given: Any
    ) -> list[AsyncGenerator[Delta, None]]:
        return [self.stream(prompt, sampling, **given) for sampling in samplings]

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        document: str | None = None,
        raw: bool = False,
    ) -> AsyncGenerator[Delta, None]:
        sampling = sampling or Sampling()
        tokens = self._admit(prompt, document)
        request, held = next(self._ids), self.documents.get(document or "")
        self.seen.append((prompt, sampling))
        cached = held.tokens if held else 0
        self.running[request] = len(tokens)
        if held:
            held.users += 1
        done = False
        try:
            for n, (piece, finish) in enumerate(self._pieces(tokens, sampling)):
                await self._step(n)
                usage = Usage(len(tokens) + cached, cached, n + 1)
                if n == self.abort_at:
                    yield Delta(request, "", (), usage, finish="abort")
                    return
                if self.crash and n == self.crash[0]:
                    if self.crash_in_delta:
                        yield Delta(request, "", (), usage, finish="error", error=self.crash[1])
                        return
                    raise self.crash[1]
                self.generated += 1
                done = finish is not None
                yield Delta(
                    request, piece, (ord(piece or "\0"),), usage, self._logprobs(n, piece, sampling), finish
                )
        finally:
            del self.running[request]
            if held:
                held.users -= 1
            self.finished, self.aborted = self.finished + done, self.aborted + (not done)

    def _admit(self, prompt: Prompt, document: str | None) -> list[int]:
        tokens = self.tokens_of(prompt)
        if self.refuse:
            raise self.refuse
        if len(self.running) >= self.max_requests:
            raise Overloaded(
                f"{len(self.running)} requests run or wait of {self.max_requests}; try again later"
            )
        if len(tokens) > self.context:
            raise PromptTooLong(
                f"the prompt has {len(tokens)} tokens, the context {self.context}; shorten it",
                field="prompt",
            )
        if document is not None and document not in self.documents:
            raise UnknownDocument(f"no document {document!r}")
        return tokens

    async def _step(self, n: int) -> None:
        """Takes `step_s` seconds; step `hang_at` never ends."""
        if n == self.hang_at:
            self.hanging += 1
            await asyncio.Event().wait()
        await asyncio.sleep(self.step_s)

    def _pieces(self, tokens: list[int], sampling: Sampling) -> list[tuple[str, FinishReason | None]]:
        """The answer's characters; a stop string is left out, and the last piece says why it is the last."""
        text = self.answer(tokens, sampling)
        finish: FinishReason = "stop"
        for stop in sampling.stop:
            text = text.partition(stop)[0]
        if sampling.max_tokens is not None and len(text) > sampling.max_tokens:
            text, finish = text[: sampling.max_tokens], "length"
        pieces: list[tuple[str, FinishReason | None]] = [(char, None) for char in text[:-1]]
        return [*pieces, (text[-1:], finish)]

    def answer(self, tokens: list[int], sampling: Sampling) -> str:
        tail = self.tokenizer.decode(tokens)[-12:]
        return f"{len(tokens)} tokens, seed {sampling.seed}, ending in <{tail}>. Goodbye, héllo."

    def _logprobs(self, n: int, piece: str, sampling: Sampling) -> tuple[TokenLogprob, ...]:
        if sampling.logprobs is None or not piece:
            return ()
        others = [(ord("a") + k, bytes([ord("a") + k]), -1.0 - k) for k in range(sampling.logprobs)]
        return (TokenLogprob(ord(piece), piece.encode(), -0.5, tuple(others), n),)

    async def document(
        self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False
    ) -> Document:
        name = name or f"doc-{next(self._ids)}"
        if name in self.documents:
            message = f"a document {name!r} exists; choose another name or delete it"
            raise InvalidRequest(message, field="name")
        await self._step(0)
        document = Document(name, len(text), raw)
        self.documents[name] = document
        return document

    async def release(self, name: str) -> None:
        document = self.documents[name]
        if document.users:
            raise DocumentInUse(f"document {name!r} is read by {document.users} sequences; wait for them")
        del self.documents[name]

    def stats(self) -> Stats:
        live = self.live_pages
        pages = {"full": {"plain": {"live": live, "cached": 3, "free": 97 - live, "total": 100}}}
        return Stats(
            {
                "pages": pages,
                "tokens": {"computed": 10, "cached": 5, "generated": self.generated},
                "prefix_hits": 2,
                "requests": {
                    "running": len(self.running),
                    "waiting": 0,
                    "finished": self.finished,
                    "aborted": self.aborted,
                    "preempted": 0,
                },
                "cells": {"now": 64, "peak": 640},
                "bytes": {"live": 1000, "peak": 1500, "budget": 9000},
                "documents": len(self.documents),
                "backend": {"name": "reference", "reason": 'no GPU: "cpu" was asked for'},
                "recipe": {"k": "q8_0", "v": "q4_0"},
                "tokens_per_s": {"prefill": 1.5, "decode": 2.5},
                "context_shifts": 3,
                "dca": {"chunk": 2048, "layers": [0, 1], "rows": {"intra": 9, "succ": 5, "inter": 2}},
            }
        )

    async def close(self) -> None:
        self.closed = True
