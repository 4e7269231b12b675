"""Ctrl-C between two engine steps instead of inside one, so that pages are given back in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Gives `check()`, which raises KeyboardInterrupt if Ctrl-C was pressed; a second press does not wait."""
    pressed = threading.Event()

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread only
        yield check
        return

    def press(number: int, frame: FrameType | None) -> None:
        check()
        pressed.set()

    before = signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
