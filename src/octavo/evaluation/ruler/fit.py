"""Prompts of a wanted length: as long as the limit allows, and never past it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from octavo.errors import InvalidRequest
from octavo.evaluation.ruler.prompt import Prompter
from octavo.evaluation.ruler.task import SEED, Sample, Task

__all__ = ["Fitter"]

_SLACK = 0.02
"""A sample may fall short of the limit by this share of it."""

_DRAWS = 64
_LINE_DRAWS = 8
"""How often a sample is drawn anew when its units are too coarse to end within the slack."""


@dataclass(frozen=True)
class _Built:
    units: int
    sample: Sample


class Fitter:
    """Draws the samples of one task at one length.

    A sample depends on seed, task, length, index and tokenizer only: not on how many are drawn, nor in what
    order. Units are whole, as published. Where they are coarse against the length (a line of two UUIDs is 7 %
    of 1,024 tokens) a sample is drawn anew until it ends within 2 % of the limit; and where that does not
    help, one more haystack line, cut short, fills it.
    """

    def __init__(self, task: Task, prompter: Prompter, length: int, *, seed: int = SEED) -> None:
        self.task, self.length = task, length
        self._prompter, self._seed = prompter, seed
        self._floor = length - int(length * _SLACK)
        self._start = task.min_units
        self._start = self._search("pilot", 0).units

    def samples(self, count: int) -> Iterator[Sample]:
        """The first `count` samples."""
        if self.task.samples is not None and count > self.task.samples:
            raise InvalidRequest(
                f"{count} samples of {self.task.name} wanted, the data file has {self.task.samples} questions"
            )
        return (self.sample(index) for index in range(count))

    def sample(self, index: int) -> Sample:
        """Sample `index`: within the limit, and within 2 % of it wherever a draw can be."""
        best: tuple[_Built, str] | None = None
        for draw in range(_LINE_DRAWS if self.task.line_length else _DRAWS):
            key = f"{index}.{draw}"
            found = self._search(key, index)
            if best is None or found.sample.tokens > best[0].sample.tokens:
                best = found, key
            if found.sample.tokens >= self._floor:
                break
        assert best is not None
        return self._filled(*best)

    def _filled(self, built: _Built, key: str) -> Sample:
        """The sample, with the longest part of one more line where it falls short."""
        low, high = 0, self.task.line_length
        best = built.sample
        while best.tokens < self._floor and low < high:
            cut = (low + high + 1) // 2
            longer = self._build(key, built.sample.index, built.units, cut).sample
            if longer.tokens <= self.length:
                low, best = cut, longer
            else:
                high = cut - 1
        return best

    def _search(self, key: str, index: int) -> _Built:
        """The first size found within the slack, or else the largest that fits."""
        fits: _Built | None = None
        over: _Built | None = None
        units: int | None = self._start
        while units is not None:
            built = self._build(key, index, units)
            if built.sample.tokens > self.length:
                over = built
            elif built.sample.tokens >= self._floor:
                return built
            else:
                fits = built
            units = self._next(fits, over)
        return self._settled(fits, over)

    def _settled(self, fits: _Built | None, over: _Built | None) -> _Built:
        if fits is None:
            assert over is not None
            raise InvalidRequest(
                f"length {self.length} is too short for {self.task.name}: its smallest prompt and answer "
                f"take {over.sample.tokens} tokens"
            )
        if over is None:
            raise InvalidRequest(
                f"length {self.length} is too long for {self.task.name}: its word list ends at "
                f"{fits.sample.tokens} tokens"
            )
        return fits

    def _next(self, fits: _Built | None, over: _Built | None) -> int | None:
        """The next size to try between a fitting and a too large one; None when nothing is left to try."""
        low = fits.units + 1 if fits else self.task.min_units
        high = over.units - 1 if over else self.task.max_units
        if high is not None and low > high:
            return None
        target = (self._floor + self.length) / 2
        if fits and over:
            slope = (over.sample.tokens - fits.sample.tokens) / (over.units - fits.units)
            guess = fits.units + int((target - fits.sample.tokens) / max(slope, 1e-9))
        else:
            one = fits or over
            assert one is not None
            guess = int(one.units * target / one.sample.tokens)
        return max(low, guess if high is None else min(high, guess))

    def _build(self, key: str, index: int, units: int, cut: int = 0) -> _Built:
        # Text seeds hash the same on every machine and Python version.
        rng = Random(f"{self._seed}/{self.task.name}/{self.length}/{key}")
        draft = self.task.draw(rng, units, index, self.length, cut)
        tokens = tuple(self._prompter.tokens(draft))
        total = len(tokens) + self.task.max_tokens
        task = self.task
        sample = Sample(task.name, task.metric, self.length, index, draft, task.max_tokens, total, tokens)
        return _Built(units, sample)
