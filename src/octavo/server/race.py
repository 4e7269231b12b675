"""Work for a client, given up when the client hangs up or the server must stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from octavo.errors import EngineStopped
from octavo.server.errors import ClientGone
from octavo.server.service import service_of

__all__ = ["STOPPED", "race"]

T = TypeVar("T")
STOPPED = "the server is stopping and ended this request before it was complete; send it again later"


async def race(work: Coroutine[Any, Any, T], request: Request) -> T:
    """The result of `work`. ClientGone or EngineStopped when that comes first; `work` is then cancelled
    and has cleaned up before this returns."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(hang_up(request))
    halted = asyncio.ensure_future(service_of(request).halt.wait())
    everyone: list[asyncio.Future[Any]] = [task, gone, halted]
    try:
        await asyncio.wait(everyone, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone if gone.done() else EngineStopped(STOPPED)
    finally:
        for future in everyone:
            future.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)


async def hang_up(request: Request) -> None:
    """Returns when the client has closed its connection. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
