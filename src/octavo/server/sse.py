"""Server-sent events: each a JSON chunk; at the end `[DONE]`, or the error that ended the stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.errors import ClientGone, error_body
from octavo.server.race import race

__all__ = ["EventStream", "open_stream"]

Chunks = AsyncGenerator[dict[str, Any], None]


async def open_stream(chunks: Chunks, request: Request) -> EventStream:
    """A response that begins when the first chunk is there, so that a refusal still has its own status."""
    try:
        first = await race(anext(chunks), request)
    except BaseException:
        await chunks.aclose()
        raise
    return EventStream(first, chunks, request)


class EventStream(Response):
    """Sends `first` and the rest of `chunks`, which are closed whatever happens, a hang-up included."""

    media_type = "text/event-stream"

    def __init__(self, first: dict[str, Any], chunks: Chunks, request: Request) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.first, self.chunks, self.request = first, chunks, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await race(self._send_chunks(send), self.request)
            await send_data(send, "[DONE]")
        except ClientGone:
            return
        except Exception as error:
            await send_data(send, json.dumps(error_body(error), ensure_ascii=False))
        finally:
            await self.chunks.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_chunks(self, send: Send) -> None:
        await send_data(send, json.dumps(self.first, ensure_ascii=False))
        async for chunk in self.chunks:
            await send_data(send, json.dumps(chunk, ensure_ascii=False))


async def send_data(send: Send, data: str) -> None:
    body = f"data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})
