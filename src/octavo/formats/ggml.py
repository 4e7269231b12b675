"""The block formats of ggml: 32 values share an fp16 factor d, and in q5_1 a minimum m.

Quantised with the unrounded d, as ggml's reference code does; the values equal those of `gguf.quants`
bit for bit. Where 32 does not divide head_dim a row is padded with its last value.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.formats.base import PAGE, Format, Layout, Side
from octavo.formats.gains import load_gains, store_gains
from octavo.formats.pack import pack, read_values, unpack

__all__ = ["GGML"]

BLOCK = 32
"""Values that share a factor."""


def padded(head_dim: int) -> int:
    """Channels of a row with its padding."""
    return -(-head_dim // BLOCK) * BLOCK


def inverse(d: Tensor) -> Tensor:
    """1 / d, and 0 where that is not finite: values so small are stored as 0."""
    return (1 / d).nan_to_num(0.0, 0.0, 0.0)


class Blocks(Format):
    """Codes of `bits` bits for blocks of 32, and fp16 sections beside them."""

    sections_fp16: tuple[str, ...] = ("gains",)

    def __init__(self, name: str, bits: int, use: str) -> None:
        self.name = name
        self.bits = bits
        self.use = use

    def section_bytes(self, head_dim: int) -> dict[str, int]:
        width = padded(head_dim)
        sizes = {"codes": PAGE * width * self.bits // 8}
        return sizes | {name: PAGE * width // BLOCK * 2 for name in self.sections_fp16}

    @abstractmethod
    def quantise(self, blocks: Tensor) -> tuple[Tensor, list[Tensor]]:
        """blocks [N, S, B, 32] → uint8 codes of that shape, and a factor [N, S, B, 1] for each section."""

    @abstractmethod
    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        """Codes section → the whole numbers they mean, int8 [N, S, D]."""

    def encode(self, x: Tensor, side: Side, layout: Layout, gain: str) -> Tensor:
        width = padded(x.shape[-1])
        rows = F.pad(x, (0, width - x.shape[-1]), mode="replicate") if width > x.shape[-1] else x
        codes, factors = self.quantise(rows.reshape(len(x), PAGE, -1, BLOCK))
        parts = [pack(codes.flatten(2), self.bits, side, layout)]
        return torch.cat(parts + [store_gains(f.squeeze(-1), layout) for f in factors], -1)

    def decode(self, data: Tensor, head_dim: int, side: Side, layout: Layout, dtype: torch.dtype) -> Tensor:
        ranges, width = self.sections(head_dim), padded(head_dim)
        start, stop = ranges["codes"]
        y = self.values(data[:, start:stop], width, side, layout).float().view(len(data), PAGE, -1, BLOCK)
        for name in self.sections_fp16:
            start, stop = ranges[name]
            factor = load_gains(data[:, start:stop], layout).unsqueeze(-1)
            y = y.mul_(factor) if name == "gains" else y.add_(factor)
        return y.flatten(2)[..., :head_dim].to(dtype).contiguous()


class Q8(Blocks):
    """int8 codes; d = largest |x| / 127; halves round away from zero."""

    def quantise(self, blocks: Tensor) -> tuple[Tensor, list[Tensor]]:
        d = blocks.abs().amax(-1, keepdim=True) / 127
        scaled = blocks * inverse(d)
        size = scaled.abs()
        whole = size.floor()
        rounded = scaled.sign() * (whole + (2 * (size - whole)).floor())
        return rounded.to(torch.int8).view(torch.uint8), [d]

    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        return unpack(data, 8, head_dim, side, layout).view(torch.int8)


class Symmetric(Blocks):
    """Codes around the middle of their range; d = the value largest in size / -2^(bits - 1)."""

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def quantise(self, blocks: Tensor) -> tuple[Tensor, list[Tensor]]:
        largest = blocks.abs().argmax(-1, keepdim=True)
        d = blocks.gather(-1, largest) / -self.middle
        codes = (blocks * inverse(d) + (self.middle + 0.5)).to(torch.uint8)
        return codes.clamp_(max=2 * self.middle - 1), [d]

    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        whole = tuple(range(-self.middle, self.middle))
        return read_values(data, self.bits, head_dim, side, layout, whole)


class WithMinimum(Blocks):
    """Codes up from the smallest value m; d = (largest - smallest) / (2^bits - 1)."""

    sections_fp16 = ("gains", "mins")

    def quantise(self, blocks: Tensor) -> tuple[Tensor, list[Tensor]]:
        top = (1 << self.bits) - 1
        low = blocks.amin(-1, keepdim=True)
        d = (blocks.amax(-1, keepdim=True) - low) / top
        codes = ((blocks - low) * inverse(d) + 0.5).to(torch.uint8)
        return codes.clamp_(max=top), [d, low]

    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        return unpack(data, self.bits, head_dim, side, layout).view(torch.int8)


GGML: tuple[Blocks, ...] = (
    Q8("q8_0", 8, "the safe default: hardly distinguishable from 16 bits"),
    Symmetric("q6_0", 6, "between q8_0 and q5_0"),
    WithMinimum("q5_1", 5, "values that lie to one side of zero"),
    Symmetric("q5_0", 5, "5 bits where trellis encoding is too slow"),
    Symmetric("q4_0", 4, "4 bits where trellis encoding is too slow; values beside q8_0 keys"),
)
