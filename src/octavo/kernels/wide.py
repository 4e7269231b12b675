"""Variants of the kernel that reads pages for up to 128 query rows at once: the Python side of cuda/wide.cu.

It takes products only Hopper has. Its operands are 16 bits wide, so it rounds less than the decode kernel's
8-bit arithmetic; what it saves is unpacking a page again for each sixteen rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from octavo.errors import UnsupportedModel
from octavo.formats.base import PAGE
from octavo.kernels.variants import Attending, page_bytes

__all__ = ["SAVES", "WIDE_HEAD_DIMS", "WideVariant", "choose_wide", "wide_from"]

FROM_ROWS = {64: 49, 128: 33}
"""Query rows that share pages from which a wide run may pay, by head_dim: one tile more than its cost."""

SAVES = 450.0
"""Readings of a page by a tile that a wide run must save: what beginning and merging it costs more."""

WIDE_HEAD_DIMS = tuple(FROM_ROWS)

HOPPER = (9, 0)


def wide_from(head_dim: int) -> int:
    """`wide` of plan_items for the current device: the least rows of a wide run, 0 where there are none."""
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == HOPPER
    return FROM_ROWS.get(head_dim, 0) if hopper else 0


@dataclass(frozen=True)
class WideVariant(Attending):
    """One compiled wide kernel: `stages` tiles of unpacked pages, `ahead` packed ones on their way."""

    stages: int = 3
    ahead: int = 4

    threads = 512

    def defines(self) -> dict[str, int]:
        """Macros of the compilation."""
        return super().defines() | {"STAGES": self.stages, "AHEAD": self.ahead}

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA; cuda/wide.cu checks that it is enough."""
        packed = page_bytes(self.k, self.head_dim, self.centred) + page_bytes(self.v, self.head_dim, False)
        keys, values = (PAGE + 8 * self.centred) * self.head_dim, (self.head_dim + 8) * PAGE
        bars = 16 * (self.stages + self.ahead)
        return 2 * self.stages * (keys + values) + self.ahead * packed + self.table_bytes + bars


def choose_wide(k: str, v: str, head_dim: int, *, shared_limit: int, **settings: bool) -> WideVariant:
    """The variant for these pages, with the most stages that fit. Raises UnsupportedModel."""
    if head_dim not in WIDE_HEAD_DIMS:
        raise UnsupportedModel(
            f"wide runs have no kernel for head_dim {head_dim}, only for {WIDE_HEAD_DIMS}; plan with wide=0"
        )
    variant = WideVariant(k, v, head_dim, **settings)
    for stages, ahead in ((4, 4), (3, 4), (3, 2), (2, 2)):
        fitted = replace(variant, stages=stages, ahead=ahead)
        if fitted.shared_bytes <= shared_limit:
            return fitted
    raise UnsupportedModel(f"pages of {k}:{v} exceed {shared_limit} bytes of shared memory; plan with wide=0")
