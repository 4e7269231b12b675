"""PageCodec: pages of one side as bytes, keys centred where asked."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.errors import InvalidRequest, unknown
from octavo.formats.base import ALIGN, PAGE, Format, Layout, Side, lay_out
from octavo.formats.gains import GAIN_RULES, LARGEST

__all__ = ["PageCodec"]


class PageCodec:
    """A format, settled for one side of layers with one head dim.

    layout   byte order of the codes
    gain     gain rule of the turbo formats: norm, mmse or unbiased
    centred  keep the page's mean apart: D int8 codes and one fp16 gain behind the format's own bytes
    dtype    what the model runs in; only the format "plain" depends on it
    """

    def __init__(
        self,
        format: Format,
        head_dim: int,
        side: Side,
        *,
        layout: Layout = "rows",
        gain: str = "norm",
        centred: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if head_dim % 16 or head_dim < 16:
            raise InvalidRequest(f"head_dim {head_dim} cannot be packed: formats need a multiple of 16")
        if gain not in GAIN_RULES:
            raise unknown("gain rule", gain, GAIN_RULES)
        self.format = format.for_dtype(dtype)
        self.head_dim = head_dim
        self.side: Side = side
        self.layout: Layout = layout
        self.gain = gain
        self.centred = centred

    def sections(self) -> dict[str, tuple[int, int]]:
        """Byte ranges in a page: codes, then gains, mins, mean and mean_gain where they exist."""
        ranges = self.format.sections(self.head_dim)
        if self.centred:
            ranges |= lay_out({"mean": self.head_dim, "mean_gain": 2}, self.format.nbytes(self.head_dim))
        return ranges

    @property
    def nbytes(self) -> int:
        """Bytes of one page of one KV head, everything included; a multiple of 16."""
        own = self.format.nbytes(self.head_dim)
        return own + self.head_dim + ALIGN if self.centred else own

    @property
    def bits_per_value(self) -> float:
        """All stored bits over the values they stand for."""
        return 8 * self.nbytes / (PAGE * self.head_dim)

    def encode(self, x: Tensor) -> Tensor:
        """x [N, S, D] of any float dtype, already rotated → uint8 [N, nbytes].

        Not-a-number counts as 0; values beyond ±65504, infinities too, as ±65504: a page is always finite.
        """
        if x.dim() != 3 or x.shape[1:] != (PAGE, self.head_dim):
            raise InvalidRequest(f"a page is [N, {PAGE}, {self.head_dim}], not {list(x.shape)}")
        if not self.format.quantised and not self.centred:
            return self.format.encode(x, self.side, self.layout, self.gain)
        x = x.float().nan_to_num(0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
        if not self.centred:
            return self.format.encode(x, self.side, self.layout, self.gain)
        codes, gain = quantise_mean(x.mean(1))
        rest = (x - (codes * gain)[:, None]).clamp(-LARGEST, LARGEST)
        body = self.format.encode(rest, self.side, self.layout, self.gain)
        return torch.cat((body, store_mean(codes, gain)), -1)

    def decode(self, data: Tensor, dtype: torch.dtype = torch.float32, *, add_mean: bool = True) -> Tensor:
        """uint8 [N, nbytes] → [N, S, D]; without `add_mean` a centred page stays centred."""
        own = self.format.nbytes(self.head_dim)
        if not (self.centred and add_mean):
            return self.format.decode(data[:, :own], self.head_dim, self.side, self.layout, dtype)
        y = self.format.decode(data[:, :own], self.head_dim, self.side, self.layout, torch.float32)
        return y.add_(self.mean(data)[:, None]).to(dtype)

    def mean(self, data: Tensor) -> Tensor:
        """The mean that was taken out of each page, float32 [N, D]; zeros where pages are not centred."""
        if not self.centred:
            return torch.zeros(len(data), self.head_dim, device=data.device)
        ranges = self.sections()
        codes = data[:, slice(*ranges["mean"])].view(torch.int8).float()
        return codes * data[:, slice(*ranges["mean_gain"])].view(torch.float16).float()


def quantise_mean(mean: Tensor) -> tuple[Tensor, Tensor]:
    """mean [N, D] → whole numbers in ±127 [N, D] and fp16-exact gains [N, 1], both float32."""
    gain = (mean.abs().amax(-1, keepdim=True) / 127).half().float()
    codes = (mean / gain).nan_to_num(0.0, 0.0, 0.0).round().clamp(-127, 127)
    return codes, gain


def store_mean(codes: Tensor, gain: Tensor) -> Tensor:
    """The mean's bytes, padded to 16: [N, D + 16]."""
    padding = torch.zeros(len(codes), ALIGN - 2, dtype=torch.uint8, device=codes.device)
    return torch.cat((codes.to(torch.int8).view(torch.uint8), gain.half().view(torch.uint8), padding), -1)
