"""The samples of one request, generated together and merged into one stream of deltas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from octavo.engine.requests import Delta, FinishReason, Prompt, Sampling, TokenLogprob, Usage
from octavo.errors import InvalidRequest
from octavo.server.errors import ApiError
from octavo.server.service import Service

__all__ = ["Answer", "Generation", "Sample", "collect"]

Streams = list[AsyncGenerator[Delta, None]]


@dataclass(frozen=True)
class Sample:
    """One completion asked for: sample after sample of the first prompt, then of the second, …"""

    prompt: Prompt
    sampling: Sampling


@dataclass
class Answer:
    """A sample's deltas put together."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None


class Generation:
    """Samples of one HTTP request. All enter the engine at once, so that it computes what they share once."""

    def __init__(
        self, service: Service, samples: Sequence[Sample], *, per_prompt: int, document: str | None, raw: bool
    ) -> None:
        self.service, self.samples, self.per_prompt = service, samples, per_prompt
        self.document, self.raw = document, raw
        self.usages: list[Usage | None] = [None] * len(samples)
        self.started = time.perf_counter()

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """(sample index, delta) as they come, until every sample has finished.

        The first error of any sample ends all. Closing this generator aborts what still runs and frees its
        pages.
        """
        queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue()
        each = self.per_prompt
        asked = [asyncio.create_task(self._ask(n)) for n in range(0, len(self.samples), each)]
        pumps = [
            asyncio.create_task(self._pump(n, asked[n // each], queue)) for n in range(len(self.samples))
        ]
        running = len(pumps)
        try:
            while running:
                index, item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield index, item
        finally:
            for task in (*asked, *pumps):
                task.cancel()
            await asyncio.gather(*asked, *pumps, return_exceptions=True)

    async def _ask(self, first: int) -> Streams:
        """The streams of the samples of one prompt, from sample `first` on."""
        samples = self.samples[first : first + self.per_prompt]
        samplings = [sample.sampling for sample in samples]
        return await self.service.worker.samples(
            samples[0].prompt, samplings, document=self.document, raw=self.raw
        )

    async def _pump(
        self,
        index: int,
        asked: Awaitable[Streams],
        queue: asyncio.Queue[tuple[int, Delta | Exception | None]],
    ) -> None:
        """Moves one sample's deltas to `queue`, then None, or the error that ended it."""
        try:
            async for delta in self._one(index, asked):
                queue.put_nowait((index, delta))
            queue.put_nowait((index, None))
        except Exception as error:
            self.service.note(error)
            if isinstance(error, InvalidRequest) and error.field == "prompt" and not self.raw:
                error.field = "messages"  # what a prompt is called in a chat
            queue.put_nowait((index, error))

    async def _one(self, index: int, asked: Awaitable[Streams]) -> AsyncGenerator[Delta, None]:
        """One sample's deltas, the last of which finishes it; anything else is an error."""
        last, stream = self.started, (await asked)[index % self.per_prompt]
        async with aclosing(stream):
            async for delta in stream:
                if delta.error is not None:
                    raise delta.error
                if delta.finish in ("abort", "error"):
                    break
                last = self._count(index, delta, last)
                yield delta
                if delta.finish is not None:
                    return
        message = "the engine aborted this request before it was complete; send it again later"
        raise ApiError(503, message, code="aborted", type="server_error", headers={"Retry-After": "1"})

    def _count(self, index: int, delta: Delta, last: float) -> float:
        """Notes usage and latencies; returns the time of the newest token, in seconds."""
        first = self.usages[index] is None
        self.usages[index] = delta.usage
        if not delta.tokens:
            return last
        now = time.perf_counter()
        self.service.metrics.tokens(now - last, len(delta.tokens), first=first)
        return now

    def usage(self) -> Usage:
        """Tokens of the whole request. A prompt counts once, however many samples read it, and its tokens
        count as cached when no sample computed them."""
        prompt = cached = 0
        for start in range(0, len(self.usages), self.per_prompt):
            known = [usage for usage in self.usages[start : start + self.per_prompt] if usage]
            prompt += max((usage.prompt_tokens for usage in known), default=0)
            cached += min((usage.cached_tokens for usage in known), default=0)
        made = sum(usage.completion_tokens for usage in self.usages if usage)
        dropped = sum(usage.context_shifted for usage in self.usages if usage)
        return Usage(prompt, cached, made, dropped)


async def collect(generation: Generation) -> list[Answer]:
    """All samples, complete."""
    answers = [Answer() for _ in generation.samples]
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            answer = answers[index]
            answer.text += delta.text
            answer.logprobs.extend(delta.logprobs)
            answer.finish = delta.finish
    return answers
