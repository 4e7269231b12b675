"""RULER's two scores, in percent."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["found_share", "string_match_all", "string_match_part"]

_UNPRINTABLE = re.compile(r"[\x00-\x1f]")


def found_share(completion: str, references: Sequence[str], *, any_of: bool = False) -> float:
    """The share of `references` that `completion` contains, case ignored; with `any_of`, 1 if any is there.

    Control characters count as line ends, as in the published post-processing.
    """
    text = _UNPRINTABLE.sub("\n", completion.strip()).strip().lower()
    found = [reference.lower() in text for reference in references]
    return float(any(found)) if any_of else sum(found) / len(found)


def string_match_all(completions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The mean over samples of the share of references found, in percent."""
    return _mean([found_share(c, r) for c, r in zip(completions, references, strict=True)])


def string_match_part(completions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The share of samples in which any reference is found, in percent."""
    return _mean([found_share(c, r, any_of=True) for c, r in zip(completions, references, strict=True)])


def _mean(shares: Sequence[float]) -> float:
    return 100 * sum(shares) / len(shares)
