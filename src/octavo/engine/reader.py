"""The way from the engine's thread back to an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from octavo.engine.requests import Delta
from octavo.errors import EngineStopped

__all__ = ["Command", "Reader", "answered", "post"]

T = TypeVar("T")
Command = Callable[[], object]


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


async def answered(
    send: Callable[[Command], bool], function: Callable[[], T], undo: Callable[[T], object] | None
) -> T:
    """What `function` returns or raises on the engine's thread, to which `send` hands commands unless that
    has ended (EngineStopped); if the caller is gone by then, `undo` its result there."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def command() -> None:
        if future.cancelled():
            return
        try:
            result = function()
        except Exception as error:
            caught = error
            post(loop, lambda: None if future.done() else future.set_exception(caught))
            return

        def settle() -> None:
            if not future.cancelled():
                future.set_result(result)
            elif undo is not None:
                send(lambda: undo(result))

        post(loop, settle)

    if not send(command):
        raise EngineStopped("the engine was closed")
    try:
        return await future
    except asyncio.CancelledError:
        # Cancelled between the result's arrival and the caller's next turn: nobody takes it any more.
        if undo is not None and future.done() and not future.cancelled() and not future.exception():
            taken = future.result()
            send(lambda: undo(taken))
        raise
