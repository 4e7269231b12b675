"""Variable tracking: a chain of assignments hidden in noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from string import ascii_uppercase

from octavo.evaluation.ruler.niah import NOISE
from octavo.evaluation.ruler.task import Draft, Task

__all__ = ["VariableTracking"]

_HOPS = 4
_EXAMPLE_TOKENS = 500
_EXAMPLE_STEP = 5
_TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
)
_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are "
    "assigned the value {query}, they are: "
)


class VariableTracking(Task):
    """One chain of four hops; a worked example with three-letter names, drawn anew each time, precedes."""

    name = "vt"
    max_tokens = 30
    min_units = _HOPS + 1
    line_length = len(NOISE)

    def __init__(self, example_lines: int) -> None:
        self._example_lines = example_lines

    def draw(self, rng: Random, units: int, index: int, length: int, cut: int = 0) -> Draft:
        question, names, value = _question(rng, units, letters=5, cut=cut)
        prefix = _PREFIX.format(count=_HOPS + 1, query=value)
        return Draft(_example(rng, self._example_lines) + "\n" + question, prefix, tuple(names))

    @staticmethod
    def example_lines(count_tokens: Callable[[str], int]) -> int:
        """How many noise lines the worked example takes: the most, in steps of five, within 500 tokens."""
        lines = _EXAMPLE_STEP
        while count_tokens(_example(Random(0), lines + _EXAMPLE_STEP)) <= _EXAMPLE_TOKENS:
            lines += _EXAMPLE_STEP
        return lines


def _example(rng: Random, lines: int) -> str:
    question, names, value = _question(rng, lines, letters=3)
    return question + _PREFIX.format(count=_HOPS + 1, query=value) + " " + " ".join(names) + "\n"


def _question(rng: Random, lines: int, *, letters: int, cut: int = 0) -> tuple[str, list[str], str]:
    names = _names(rng, letters)
    value = str(rng.randrange(10_000, 99_999))
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {new} = VAR {old} " for old, new in pairwise(names)]
    context = _hidden(rng, chain, lines) + ("\n" + NOISE[:cut].rstrip() if cut else "")
    return _TEMPLATE.format(context=context, query=value), names, value


def _names(rng: Random, letters: int) -> list[str]:
    names: list[str] = []
    while len(names) <= _HOPS:
        name = "".join(rng.choices(ascii_uppercase, k=letters))
        if name not in names:
            names.append(name)
    return names


def _hidden(rng: Random, chain: Sequence[str], lines: int) -> str:
    text = [NOISE] * lines
    for done, place in enumerate(sorted(rng.sample(range(lines), len(chain)))):
        text.insert(place + done, chain[done])
    return "\n".join(text).replace(". \n", ".\n")
