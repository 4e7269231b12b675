"""The two aggregation tasks: common words in a list, frequent words in coded text."""

from __future__ import annotations

from functools import cache
from math import pi
from random import Random
from string import ascii_lowercase

from octavo.evaluation.ruler.task import SEED, Draft, Task
from octavo.evaluation.ruler.words import word_list

__all__ = ["CommonWords", "FrequentWords"]

_COMMON = 10
_SHORT = 4096
"""Below this length the lists repeat less."""

_CWE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
    "ones that appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
)
_CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"

_FWE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore "
    "the dots '....'. What are the three most frequently appeared words in the above coded text?"
)
_FWE_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
_LETTERS = 6
_ZETA_2 = pi * pi / 6


class CommonWords(Task):
    """Ten words appear 30 times, the others 3 times (6 and 1 below 4,096 tokens); one worked example."""

    name = "cwe"
    max_tokens = 120
    min_units = _COMMON + 1

    def __init__(self) -> None:
        self.max_units = len(_all_words())

    def draw(self, rng: Random, units: int, index: int, length: int, cut: int = 0) -> Draft:
        short = length < _SHORT
        shown, answer = _word_list(rng, *((20, 3, 1) if short else (40, 10, 3)))
        example = _CWE.format(context=shown) + _CWE_PREFIX + " " + _numbered(answer)
        context, common = _word_list(rng, units, *((6, 1) if short else (30, 3)))
        return Draft(example + "\n" + _CWE.format(context=context), _CWE_PREFIX, tuple(common))


def _word_list(rng: Random, count: int, common_times: int, other_times: int) -> tuple[str, list[str]]:
    words = rng.sample(_all_words(), count)
    common, others = words[:_COMMON], words[_COMMON:]
    repeated = common * common_times + others * other_times
    Random(SEED).shuffle(repeated)
    return _numbered(repeated), common


def _numbered(words: list[str]) -> str:
    return " ".join(f"{n}. {word}" for n, word in enumerate(words, 1))


@cache
def _all_words() -> list[str]:
    words = sorted({*word_list("nouns"), *word_list("adjectives"), *word_list("verbs")})
    Random(SEED).shuffle(words)
    return words


class FrequentWords(Task):
    """Words of six random letters, the k-th as often as k⁻² says (Zipf, α = 2); the first is noise, "..."."""

    name = "fwe"
    max_tokens = 50
    min_units = 50

    def draw(self, rng: Random, units: int, index: int, length: int, cut: int = 0) -> Draft:
        vocabulary = _coded_words(rng, max(4, length // 50))
        counts = [int(units * rank**-2 / _ZETA_2) for rank in range(1, len(vocabulary) + 1)]
        words = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
        Random(SEED).shuffle(words)
        return Draft(_FWE.format(context=" ".join(words)), _FWE_PREFIX, tuple(vocabulary[1:4]))


def _coded_words(rng: Random, count: int) -> list[str]:
    words: set[str] = set()
    while len(words) < count:
        words.add("".join(rng.choices(ascii_lowercase, k=_LETTERS)))
    ordered = sorted(words)
    Random(SEED).shuffle(ordered)
    return ["...", *ordered[1:]]
