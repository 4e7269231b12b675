"""Pages the format tests share."""

from __future__ import annotations

import numpy as np
import torch

from octavo.formats import PAGE, format_names, get_format
from octavo.formats.pack import TILE_HEAD_DIMS

HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256, 512)
QUANTISED = tuple(name for name in format_names() if get_format(name).quantised)
LAYOUTS = ("rows", "tile")


def gaussian(pages: int, head_dim: int, seed: int = 0) -> torch.Tensor:
    """Unit Gaussian float32 [pages, S, D]."""
    values = np.random.RandomState(seed).standard_normal((pages, PAGE, head_dim))
    return torch.from_numpy(values.astype(np.float32))


def exists(head_dim: int, layout: str) -> bool:
    """Whether pages of `head_dim` have the layout."""
    return layout == "rows" or head_dim in TILE_HEAD_DIMS


def relative_error(x: torch.Tensor, y: torch.Tensor) -> float:
    """Squared error over power."""
    return float((x - y).square().sum() / x.square().sum())
