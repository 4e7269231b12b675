"""What a RULER task is: a way to draw prompts of any size from random numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import Literal

__all__ = ["SEED", "Draft", "Metric", "Sample", "Task"]

SEED = 42
"""The published seed. Orders that the published generator shuffles with a fresh seed are shuffled with it."""

Metric = Literal["all", "part"]
"""`all`: the share of references found; `part`: whether any is found."""


@dataclass(frozen=True)
class Draft:
    """One drawn prompt: what the user says, how the answer begins, and what it should contain."""

    prompt: str
    prefix: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """A draft of the wanted length.

    length   the limit in tokens: prompt (chat template included) + prefix + `max_tokens`
    tokens   what the sample takes of it
    prompt_tokens   token ids of prompt and prefix, ready for the engine
    """

    task: str
    metric: Metric
    length: int
    index: int
    draft: Draft
    max_tokens: int
    tokens: int
    prompt_tokens: tuple[int, ...]


class Task(ABC):
    """A RULER task. Its size is counted in units: haystack lines, words or documents.

    min_units, max_units   the sizes it can be drawn in (None: no upper end)
    samples                how many different samples there are (None: as many as one likes)
    line_length            characters of a haystack line, where units are lines: one more can be cut short
    """

    name: str
    max_tokens: int
    metric: Metric = "all"
    min_units: int = 1
    max_units: int | None = None
    samples: int | None = None
    line_length: int = 0

    @abstractmethod
    def draw(self, rng: Random, units: int, index: int, length: int, cut: int = 0) -> Draft:
        """A prompt of `units`; the same for the same arguments and state of `rng`.

        `cut` adds that many characters of one more haystack line at the end.
        """
