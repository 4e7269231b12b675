"""A request's output as text: whole characters only, cut at stop strings."""

from __future__ import annotations

from octavo.model.tokenizer import Tokenizer

__all__ = ["Output"]


class Output:
    """Feed tokens, take text that can never be taken back: what might begin a stop string is held until it is
    clear."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]):
        self._detokenizer = tokenizer.stream()
        self._stops = stops
        self._held = ""
        self.stopped = False

    @property
    def begun(self) -> int:
        """Characters so far: those held back and an unfinished one count too."""
        return self._detokenizer.begun

    @property
    def start(self) -> int:
        """The character in which the newest token begins."""
        return self._detokenizer.start

    def add(self, token: int) -> str:
        """Text released by this token; sets `stopped` when a stop string was completed (it is cut off)."""
        return self._release(self._detokenizer.add(token))

    def flush(self) -> str:
        """The rest, when no more tokens come."""
        return self._release(self._detokenizer.flush(), final=True)

    def _release(self, text: str, final: bool = False) -> str:
        self._held += text
        cut = min((at for at in (self._held.find(stop) for stop in self._stops) if at >= 0), default=-1)
        if cut >= 0:
            self.stopped = True
            text, self._held = self._held[:cut], ""
            return text
        keep = 0 if final else self._possible_stop()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in self._stops):
                return n
        return 0
