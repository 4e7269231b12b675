"""The one interface every KV format implements.

Letters, here and in docs/formats.md: N (page, KV head) pairs, S = 64 token slots, D head dim.
A format sees values that are already equalised and rotated; it knows nothing of models or pages' owners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

__all__ = ["ALIGN", "PAGE", "Format", "Layout", "Side", "lay_out"]

PAGE = 64
"""Tokens in a page."""

ALIGN = 16
"""Every section of a page starts at a multiple of so many bytes: what one thread loads at once."""

Side = Literal["k", "v"]
Layout = Literal["rows", "tile"]
"""Byte order of packed codes: `rows` token by token (the CPU reads it fastest), `tile` in the register
order of the decode kernel's tensor-core tiles."""


def lay_out(sizes: dict[str, int], start: int = 0) -> dict[str, tuple[int, int]]:
    """Byte range of each section, in order, each start rounded up to ALIGN."""
    ranges = {}
    for name, size in sizes.items():
        ranges[name] = (start, start + size)
        start += -(-size // ALIGN) * ALIGN
    return ranges


class Format(ABC):
    """How 64 × D values of one KV head become bytes. The PyTorch encode and decode define the format."""

    name: str
    quantised: bool = True
    use: str = ""
    """One line for `octavo formats`: where to use it."""

    @abstractmethod
    def section_bytes(self, head_dim: int) -> dict[str, int]:
        """Bytes of each section of a page of one KV head, in the order they lie: codes, gains, mins."""

    @abstractmethod
    def encode(self, x: Tensor, side: Side, layout: Layout, gain: str) -> Tensor:
        """x [N, S, D] finite float32 → uint8 [N, nbytes(D)]."""

    @abstractmethod
    def decode(self, data: Tensor, head_dim: int, side: Side, layout: Layout, dtype: torch.dtype) -> Tensor:
        """uint8 [N, nbytes(D)] → [N, S, D] in `dtype`, contiguous; rounds once, from float32."""

    def for_dtype(self, dtype: torch.dtype) -> Format:
        """This format for a model that runs in `dtype`; only "plain" depends on it."""
        return self

    def sections(self, head_dim: int) -> dict[str, tuple[int, int]]:
        """Byte range of each section of a page of one KV head."""
        return lay_out(self.section_bytes(head_dim))

    def nbytes(self, head_dim: int) -> int:
        """Bytes of one page of one KV head, gains and padding included; a multiple of 16."""
        _, stop = list(self.sections(head_dim).values())[-1]
        return -(-stop // ALIGN) * ALIGN

    def bits_per_value(self, head_dim: int) -> float:
        """All stored bits over the values they stand for."""
        return 8 * self.nbytes(head_dim) / (PAGE * head_dim)
