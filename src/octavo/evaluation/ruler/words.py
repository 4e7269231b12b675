"""Word lists and random values of the RULER tasks.

The lists are those of the `wonderwords` package (3.0.1, MIT, words/LICENSE), sorted and kept here: another
release's lists would give other samples for the same seed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from random import Random
from uuid import UUID

__all__ = ["draw_number", "draw_uuid", "draw_word", "word_list"]


@cache
def word_list(kind: str) -> tuple[str, ...]:
    """The sorted words of `kind`: nouns, adjectives or verbs."""
    text = files("octavo.evaluation.ruler").joinpath("words", f"{kind}.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


def draw_word(rng: Random) -> str:
    """An "adjective-noun"."""
    return f"{rng.choice(word_list('adjectives'))}-{rng.choice(word_list('nouns'))}"


def draw_number(rng: Random) -> str:
    """Seven digits, the first not zero."""
    return str(rng.randint(10**6, 10**7 - 1))


def draw_uuid(rng: Random) -> str:
    """A version-4 UUID."""
    return str(UUID(int=rng.getrandbits(128), version=4))
