"""What one sequence brings to a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Ints", "Segment"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """n new tokens of one sequence at rows [start, start + n) of the step.

    `pages` are the addresses of its pages from page `first` on, those of the new tokens included.
    """

    start: int
    n: int
    computed: int
    first: int
    pages: Ints
