"""The frame both generation routes share: one reply, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.engine.requests import Delta
from octavo.server.generation import Answer, Generation, collect
from octavo.server.race import race
from octavo.server.schemas import GenerationBody
from octavo.server.sse import open_stream

__all__ = ["Reply", "respond"]


class Reply(ABC):
    """The shape of one route's replies. Subclasses say what a choice looks like."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, body: GenerationBody, generation: Generation) -> None:
        self.body, self.generation = body, generation
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())

    @abstractmethod
    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A finished choice."""

    @abstractmethod
    def deltas(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """The choices, one a chunk, that tell `delta`; none when it has nothing to tell yet."""

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        """The body of a reply without streaming."""
        choices = [self.choice(index, answer) for index, answer in enumerate(answers)]
        return self._frame(self.whole_object, choices) | {"usage": self._usage()}

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed reply. With include_usage each has `usage`, null but in the last."""
        extra = {"usage": None} if self.body.wants_usage else {}
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                for choice in self.deltas(index, delta):
                    yield self._frame(self.chunk_object, [choice]) | extra
        if self.body.wants_usage:
            yield self._frame(self.chunk_object, []) | {"usage": self._usage()}

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        service = self.generation.service
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": service.model,
            "system_fingerprint": service.fingerprint,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.generation.usage()
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        } | ({"context_shifted": usage.context_shifted} if usage.context_shifted else {})


async def respond(reply: Reply, request: Request) -> Response:
    """The reply as the request wants it: events, or one JSON body."""
    if reply.body.stream:
        return await open_stream(reply.chunks(), request)
    answers = await race(collect(reply.generation), request)
    return JSONResponse(reply.whole(answers))
