"""The engine's lock. It knows when its holder is in the middle of something."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock

__all__ = ["Lock"]


class Lock:
    """A re-entrant lock for `with`. `alone` is for what the garbage collector may call at any moment, also in
    the middle of a step of the same thread."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._depth = 0
        self._later: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        try:
            while self._depth == 1 and self._later:
                self._later.popleft()()
        finally:
            self._depth -= 1
            self._lock.release()

    def alone(self, function: Callable[[], None]) -> None:
        """Run `function` under the lock: now, or as soon as this thread's own work under it is done."""
        with self:
            if self._depth > 1:
                self._later.append(function)
            else:
                function()
