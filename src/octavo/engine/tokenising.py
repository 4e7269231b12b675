"""A thread on which text becomes tokens, one call after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["Tokenising"]

T = TypeVar("T")


class Tokenising:
    """Like an executor of one thread, but a process that ends does not wait for it: half a minute may be left
    of a long text."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="octavo-tokenising", daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """What `function` returns or raises; it is not called if that was cancelled before."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(call)
        return future

    def end(self) -> None:
        """The thread ends behind what was submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it holds may be long
