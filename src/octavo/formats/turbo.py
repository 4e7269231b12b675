"""The turbo formats: one gain per token and 128 channels, each value rounded to the nearest level by itself.

Meant for rotated values, which are nearly Gaussian: the levels are those of Lloyd and Max (IEEE Trans.
Inf. Theory 28, 1982) for N(0, 1), rounded to signed bytes so that integer tensor cores can multiply them.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from octavo.formats.base import PAGE, Format, Layout, Side
from octavo.formats.gains import fit_gain, gain_span, load_gains, root_mean_square, store_gains
from octavo.formats.pack import pack, read_values, unpack

__all__ = ["LEVELS", "TURBO", "UNITS", "Spans", "Turbo", "Turbo8", "split_spans"]

LEVELS: dict[int, tuple[int, ...]] = {
    2: (38, 127),
    3: (14, 45, 79, 127),
    4: (5, 15, 25, 37, 49, 63, 81, 107),
}
"""Upper half of the levels by bits, in UNITS of a standard deviation. Made by octavo.formats.train.

Those of 4 bits are odd, so that seven bits tell them apart: the decode kernel looks them up in two halves
that it joins by an OR, which needs the top bit free. At the best unit that costs D less than 1 %.
"""

UNITS = {2: 127 / 1.51041761, 3: 127 / 2.15194570, 4: 38.99}
"""Units in a standard deviation, by bits."""


class Spans(Format):
    """Whole numbers in ±127 of `bits` bits of code each, times one gain per token and span of channels."""

    def __init__(self, name: str, bits: int, use: str) -> None:
        self.name = name
        self.bits = bits
        self.use = use

    def section_bytes(self, head_dim: int) -> dict[str, int]:
        spans = head_dim // gain_span(head_dim)
        return {"codes": PAGE * head_dim * self.bits // 8, "gains": PAGE * spans * 2}

    @abstractmethod
    def quantise(self, x: Tensor, side: Side, layout: Layout, gain: str) -> tuple[Tensor, Tensor]:
        """x [N, S, D] → the codes section [N, ...], and gains [N, S, B, 1]."""

    @abstractmethod
    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        """Codes section → the whole numbers they mean, int8 [N, S, D]."""

    def encode(self, x: Tensor, side: Side, layout: Layout, gain: str) -> Tensor:
        codes, gains = self.quantise(x, side, layout, gain)
        return torch.cat((codes, store_gains(gains.squeeze(-1), layout)), -1)

    def decode(self, data: Tensor, head_dim: int, side: Side, layout: Layout, dtype: torch.dtype) -> Tensor:
        ranges = self.sections(head_dim)
        whole = self.values(data[:, slice(*ranges["codes"])], head_dim, side, layout)
        gains = load_gains(data[:, slice(*ranges["gains"])], layout)
        if gains.shape[-1] == 1:
            return whole.float().mul_(gains).to(dtype)
        return split_spans(whole.float()).mul_(gains.unsqueeze(-1)).flatten(2).to(dtype)


def split_spans(x: Tensor) -> Tensor:
    """[N, S, D] → [N, S, B, W]: the channels that share a gain along the last axis."""
    width = gain_span(x.shape[-1])
    return x.reshape(len(x), PAGE, x.shape[-1] // width, width)


class Turbo8(Spans):
    """int8 codes; gain = largest |x| / 127. The gain rule makes no difference at 8 bits and is not used."""

    def quantise(self, x: Tensor, side: Side, layout: Layout, gain: str) -> tuple[Tensor, Tensor]:
        spans = split_spans(x)
        gains = (spans.abs().amax(-1, keepdim=True) / 127).half()
        codes = (spans / gains.float()).nan_to_num(0.0, 0.0, 0.0).round().clamp(-127, 127)
        return pack(codes.to(torch.int8).view(torch.uint8).flatten(2), 8, side, layout), gains

    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        return unpack(data, 8, head_dim, side, layout).view(torch.int8)


class Turbo(Spans):
    """Codes for the levels from lowest to highest; the gain by the codec's rule."""

    @property
    def levels(self) -> tuple[int, ...]:
        """Every level, ascending."""
        upper = LEVELS[self.bits]
        return tuple(-level for level in reversed(upper)) + upper

    def quantise(self, x: Tensor, side: Side, layout: Layout, gain: str) -> tuple[Tensor, Tensor]:
        spans = split_spans(x)
        levels = torch.tensor(self.levels, dtype=torch.float32, device=x.device)
        scaled = spans * (UNITS[self.bits] / root_mean_square(spans))
        codes = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2, out_int32=True)
        packed = pack(codes.to(torch.uint8).flatten(2), self.bits, side, layout)
        return packed, fit_gain(spans, levels[codes], gain)

    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        return read_values(data, self.bits, head_dim, side, layout, self.levels)


TURBO = (
    Turbo8("turbo8", 8, "8 bits with fewer gains than q8_0; keys that stand beside coarse values"),
    Turbo("turbo4", 4, "4 bits that encode fast"),
    Turbo("turbo3", 3, "3 bits that encode fast"),
    Turbo("turbo2", 2, "2 bits that encode fast; values rather than keys"),
)
