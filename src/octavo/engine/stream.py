"""One request's deltas as an iterator that runs the engine while it waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType

from octavo.engine.requests import Delta

__all__ = ["Stream"]


class Stream:
    """Iterate for deltas; `close` (or leaving the `with`, or dropping it) aborts what has not finished.

    `pump` runs one step and fills `inbox`; `abandon` cancels the request.
    """

    def __init__(
        self, id: int, inbox: deque[Delta], pump: Callable[[], None], abandon: Callable[[int], None]
    ):
        self.id = id
        self._inbox = inbox
        self._pump = pump
        self._abandon = abandon
        self._open = True

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        if not self._open:
            raise StopIteration
        while not self._inbox:
            self._pump()
        delta = self._inbox.popleft()
        if delta.finish:
            self.close()
        if delta.error is not None:
            raise delta.error
        return delta

    def close(self) -> None:
        if self._open:
            self._open = False
            self._abandon(self.id)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
