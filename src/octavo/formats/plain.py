"""Formats that keep every value: the model's own dtype, or a 16-bit float."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE, Format, Layout, Side

__all__ = ["PLAIN", "Plain"]


class Plain(Format):
    """Values stored in `dtype`, token by token; both layouts are the same bytes.

    What exceeds the dtype becomes its largest number; not-a-number stays. "plain" changes nothing at all.
    """

    quantised = False

    def __init__(self, name: str, dtype: torch.dtype, use: str, *, follows_model: bool = False) -> None:
        if not dtype.is_floating_point:
            raise InvalidRequest(f"format {name!r} stores floating-point values, not {dtype}")
        self.name = name
        self.dtype = dtype
        self.use = use
        self.follows_model = follows_model

    def for_dtype(self, dtype: torch.dtype) -> Plain:
        if not self.follows_model or dtype == self.dtype:
            return self
        return Plain(self.name, dtype, self.use, follows_model=True)

    def section_bytes(self, head_dim: int) -> dict[str, int]:
        return {"codes": PAGE * head_dim * self.dtype.itemsize}

    def encode(self, x: Tensor, side: Side, layout: Layout, gain: str) -> Tensor:
        if not self.follows_model:
            limits = torch.finfo(self.dtype)
            x = x.float().clamp(limits.min, limits.max)  # a float16 cannot hold the limits of bfloat16
        return x.to(self.dtype).contiguous().flatten(1).view(torch.uint8)

    def decode(self, data: Tensor, head_dim: int, side: Side, layout: Layout, dtype: torch.dtype) -> Tensor:
        return data.contiguous().view(self.dtype).view(-1, PAGE, head_dim).to(dtype, copy=True)


PLAIN = (
    Plain(
        "plain",
        torch.float32,
        "the model's own dtype, nothing lost: short contexts, and the yardstick for the others",
        follows_model=True,
    ),
    Plain("f16", torch.float16, "half precision whatever the model runs in; exact for float16 models"),
    Plain("bf16", torch.bfloat16, "bfloat16 whatever the model runs in; exact for bfloat16 models"),
)
