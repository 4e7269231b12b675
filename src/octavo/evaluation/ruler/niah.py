"""Needle in a haystack: eight of the thirteen tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal

from octavo.evaluation.ruler.task import SEED, Draft, Task
from octavo.evaluation.ruler.words import draw_number, draw_uuid, draw_word

__all__ = ["NOISE", "Essay", "Haystack", "Niah", "NiahShape"]

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What is the special magic {kind} for {query} mentioned in the provided text?"
)
_MANY = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
)
_ONE_PREFIX = " The special magic {kind} for {query} mentioned in the provided text is"
_MANY_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"

_DEPTHS = [round(100 * n / 39) for n in range(40)]
"""Percent of the essay's sentences: the 40 places where needles go."""

Haystack = Literal["noise", "essay", "needle"]
_DRAW: dict[str, Callable[[Random], str]] = {"words": draw_word, "numbers": draw_number, "uuids": draw_uuid}
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]* (?=[\"'“‘(\[]?[A-Z0-9])")


class Essay:
    """Long prose as a list of words, repeated when more are wanted than there are."""

    def __init__(self, text: str) -> None:
        self.words = text.split()

    def sentences(self, count: int) -> list[str]:
        """The first `count` words, cut into sentences; joined by spaces they are the text again."""
        repeats = -(-count // len(self.words))
        text = " ".join((self.words * repeats)[:count])
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        return [text[a:b].strip() for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@dataclass(frozen=True)
class NiahShape:
    """How many keys there are, values of a key, keys asked for, and what keys and values look like."""

    haystack: Haystack
    keys: int = 1
    values: int = 1
    queries: int = 1
    key_kind: str = "words"
    value_kind: str = "numbers"

    @property
    def single(self) -> bool:
        """Whether one value is the answer: the template then speaks in the singular."""
        return self.queries * self.values == 1


class Niah(Task):
    """Needles `One of the special magic numbers for {key} is: {value}.` among lines or in an essay."""

    max_tokens = 128

    def __init__(self, name: str, shape: NiahShape, essay: Essay | None = None) -> None:
        self.name, self.shape, self._essay = name, shape, essay
        self._keys = max(shape.keys, shape.queries)
        self.min_units = 1 if essay else self._keys * shape.values
        self.line_length = 0 if essay else len(self._line(Random(SEED)))

    def draw(self, rng: Random, units: int, index: int, length: int, cut: int = 0) -> Draft:
        shape = self.shape
        keys = [(self._key(rng), [self._value(rng) for _ in range(shape.values)]) for _ in range(self._keys)]
        needles = [self._needle(key, value) for key, values in keys for value in values]
        Random(SEED).shuffle(needles)
        context = self._context(rng, units, needles)
        if cut:
            context += "\n" + self._line(rng)[:cut].rstrip()
        asked = [keys[n] for n in rng.sample(range(self._keys), shape.queries)]
        answers = tuple(value for _, values in asked for value in values)
        names = {"kind": self._kind(), "query": _listed([key for key, _ in asked])}
        template, prefix = (_ONE, _ONE_PREFIX) if shape.single else (_MANY, _MANY_PREFIX)
        return Draft(template.format(context=context, **names), prefix.format(**names), answers)

    def _context(self, rng: Random, units: int, needles: list[str]) -> str:
        if self._essay:
            return _in_essay(rng, self._essay.sentences(units), needles)
        lines = [self._line(rng) for _ in range(units)]
        places = sorted(rng.sample(range(units), len(needles)), reverse=True)
        for place, needle in zip(places, needles, strict=True):
            lines.insert(place, needle)
        return "\n".join(lines)

    def _line(self, rng: Random) -> str:
        if self.shape.haystack == "noise":
            return NOISE
        return self._needle(self._key(rng), self._value(rng))

    def _key(self, rng: Random) -> str:
        return _DRAW[self.shape.key_kind](rng)

    def _value(self, rng: Random) -> str:
        return _DRAW[self.shape.value_kind](rng)

    def _needle(self, key: str, value: str) -> str:
        return _NEEDLE.format(kind=self.shape.value_kind, key=key, value=value)

    def _kind(self) -> str:
        return self.shape.value_kind.removesuffix("s") if self.shape.single else self.shape.value_kind


def _in_essay(rng: Random, sentences: Sequence[str], needles: Sequence[str]) -> str:
    depths = sorted(rng.sample(_DEPTHS, len(needles)))
    places = [0, *(int(len(sentences) * (depth / 100)) for depth in depths), len(sentences)]
    parts: list[str] = []
    for n, (start, stop) in enumerate(pairwise(places)):
        parts.append(" ".join(sentences[start:stop]))
        parts.extend(needles[n : n + 1])
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]
