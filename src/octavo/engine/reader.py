"""The way from the engine's thread back to an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from octavo.engine.requests import Delta

__all__ = ["Reader", "post"]


class Reader:
    """Where the deltas of one request go: a queue on the event loop that asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.queue: asyncio.Queue[Delta] = asyncio.Queue()

    def put(self, delta: Delta) -> None:
        post(self.loop, lambda: self.queue.put_nowait(delta))


def post(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Run `function` on `loop`, unless that loop is closed and nobody can be waiting there."""
    with suppress(RuntimeError):  # raised by a closed loop, which may close at any moment
        loop.call_soon_threadsafe(function)
