"""The trellis formats: the codes of neighbouring values overlap, which saves almost half the squared error.

Values are divided by the root mean square of their token's span, then walked through the table along
streams (viterbi). One stream is what one lane of the decode kernel's warp owns of a page (tile.lane_order):
a lane never needs another's bits. Head dims without tiles have a stream per token.

A page is seen as segments [N, A, J, C, E]: A × C streams of J segments of E values, whole bytes each.
Keys: A = 4 runs of 16 tokens, J = 8, C = (odd or even token, lane of the quad t), E = D/4 channels.
Values: A = 1, J = D/32 runs of channels, C = lane, E = four channels of 16 tokens.
Per token: A = 64, J = C = 1, E = D.

rows   segments in that order: keys token by token, values by runs of 32 channels.
tile   stream after stream, 16 bytes of every lane at a time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from octavo.formats.base import PAGE, Layout, Side
from octavo.formats.gains import fit_gain, root_mean_square
from octavo.formats.tile import LANES, TILE_HEAD_DIMS, check_tile, load_lanes, store_lanes
from octavo.formats.turbo import Spans, split_spans
from octavo.formats.viterbi import closest_symbols, ring_states

__all__ = ["TRELLIS", "Trellis", "load_table"]

TABLES = Path(__file__).parent / "tables"

STEP_VALUES = {4: 2, 3: 4, 2: 4}
"""Values that one table lookup of the CPU yields, by bits."""

UNIT_BYTES = {4: 1, 3: 3, 2: 1}
"""Bytes after which values start at a byte again, by bits."""


@cache
def load_table(bits: int, device: torch.device | None = None) -> tuple[Tensor, float]:
    """Levels as whole numbers, int8 [2^L], and the standard deviations one of them stands for."""
    table = torch.from_numpy(np.load(TABLES / f"trellis{bits}.npy"))
    step = float(table.abs().max()) / 127
    return (table / step).round().to(torch.int8).to(device), step


def segment_shape(head_dim: int, side: Side) -> tuple[int, int, int, int]:
    """A, J, C, E of the module's docstring."""
    if head_dim not in TILE_HEAD_DIMS:
        return PAGE, 1, 1, head_dim
    return (4, 8, 8, head_dim // 4) if side == "k" else (1, head_dim // 32, LANES, 64)


def to_segments(x: Tensor, side: Side) -> Tensor:
    """Page [N, S, D] → [N, A, J, C, E]."""
    n, _, head_dim = x.shape
    shape = (n, *segment_shape(head_dim, side))
    if head_dim not in TILE_HEAD_DIMS:
        return x.reshape(shape)
    if side == "k":  # a token's channels 32 s + 8 t + i: lane t has those of every s
        return x.reshape(n, PAGE, -1, 4, 8).transpose(2, 3).reshape(shape)
    runs = x.transpose(1, 2).reshape(n, head_dim // 4, 4, 4, 16)  # channel 4 c + i, token 16 t + j
    return runs.transpose(2, 3).reshape(shape)


def to_page(segments: Tensor, head_dim: int, side: Side) -> Tensor:
    """int8 [N, A, J, C, E] → [N, S, D], contiguous."""
    n = len(segments)
    if head_dim not in TILE_HEAD_DIMS:
        return segments.view(n, PAGE, head_dim)
    words = segments.view(torch.int64)  # eight neighbours move as one
    if side == "k":
        rows = words.view(n, PAGE, 4, -1).transpose(2, 3).contiguous()
        return rows.view(torch.int8).view(n, PAGE, head_dim)
    runs = words.view(n, head_dim // 4, 4, 4, 2).transpose(2, 3).contiguous()
    return runs.view(torch.int8).view(n, head_dim, PAGE).transpose(1, 2).contiguous()


def to_streams(segments: Tensor) -> Tensor:
    """[N, A, J, C, E] → [T, streams], T = J E."""
    return segments.permute(2, 4, 0, 1, 3).flatten(2).flatten(0, 1)


def from_streams(streams: Tensor, head_dim: int, side: Side) -> Tensor:
    """[T, streams] → [N, A, J, C, E], contiguous."""
    a, j, c, e = segment_shape(head_dim, side)
    return streams.view(j, e, -1, a, c).permute(2, 3, 0, 4, 1).contiguous()


def pack_symbols(symbols: Tensor, bits: int) -> Tensor:
    """Symbols uint8 [..., E] → bytes [..., E bits / 8], lowest bits first."""
    unit = UNIT_BYTES[bits]
    parts = symbols.reshape(*symbols.shape[:-1], -1, 8 * unit // bits).to(torch.int32)
    word = torch.zeros_like(parts[..., 0])
    for i in range(parts.shape[-1]):
        word |= parts[..., i] << (bits * i)
    return torch.stack([(word >> (8 * i)) & 255 for i in range(unit)], -1).to(torch.uint8).flatten(-2)


def read_windows(segments: Tensor, bits: int) -> Tensor:
    """Bytes [N, A, J, C, E bits / 8] → the levels at their windows, int8 [N, A, J, C, E]."""
    ahead = bytes_ahead(segments)
    table, width = window_table(bits, segments.device)
    if UNIT_BYTES[bits] == 1:
        words = torch.stack((segments, ahead), -1).view(torch.int16)
        index = words.to(torch.int32).bitwise_and_((1 << width) - 1)
    else:
        units = segments.reshape(-1, 3)
        words = torch.cat((units, ahead.view(-1, 3)[:, 2:]), 1).view(torch.int32)
        index = torch.cat((words, words >> (bits * STEP_VALUES[bits])), 1).bitwise_and_((1 << width) - 1)
    found = torch.index_select(table, 0, index.flatten()).view(torch.int8)
    return found.view(*segments.shape[:-1], -1)


def bytes_ahead(segments: Tensor) -> Tensor:
    """The byte that follows each in its stream: behind a segment's last, the first of the next."""
    ahead = torch.empty_like(segments, memory_format=torch.contiguous_format)
    ahead.view(-1)[:-1] = segments.reshape(-1)[1:]
    ahead[..., -1] = segments[..., 0].roll(-1, 2)
    return ahead


@cache
def window_table(bits: int, device: torch.device) -> tuple[Tensor, int]:
    """The levels of a few windows in a row as one wide integer, by the bits they cover; how many bits."""
    levels, _ = load_table(bits)
    values, state_bits = STEP_VALUES[bits], len(levels).bit_length() - 1
    width = state_bits + bits * (values - 1)
    covered = torch.arange(1 << width)
    found = torch.stack([levels[covered >> (bits * i) & (len(levels) - 1)] for i in range(values)], -1)
    return found.view({2: torch.int16, 4: torch.int32}[values]).flatten().to(device), width


def lay_codes(segments: Tensor, layout: Layout) -> Tensor:
    """Bytes in segments → the codes section [N, ...]."""
    if layout == "rows":
        return segments.flatten(1)
    streams = segments.transpose(2, 3).reshape(len(segments), LANES, -1)
    return store_lanes(streams.view(torch.int32))


def find_segments(data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
    """The codes section → bytes in segments [N, A, J, C, E bits / 8]."""
    a, j, c, _ = segment_shape(head_dim, side)
    if layout == "rows":
        return data.reshape(len(data), a, j, c, -1)
    check_tile(head_dim)
    streams = load_lanes(data).contiguous().view(torch.uint8)
    return streams.view(len(data), a, c, j, -1).transpose(2, 3)


class Trellis(Spans):
    """Symbols of 2 to 4 bits, tail-biting in every stream; the gain by the codec's rule."""

    def quantise(self, x: Tensor, side: Side, layout: Layout, gain: str) -> tuple[Tensor, Tensor]:
        spans, head_dim = split_spans(x), x.shape[-1]
        levels, step = load_table(self.bits, x.device)
        scaled = (spans / (root_mean_square(spans) * step)).flatten(2)
        symbols = closest_symbols(to_streams(to_segments(scaled, side)), levels, self.bits)
        states = ring_states(symbols, self.bits, len(levels).bit_length() - 1)
        walked = to_page(from_streams(levels[states], head_dim, side), head_dim, side).float()
        codes = pack_symbols(from_streams(symbols, head_dim, side), self.bits)
        return lay_codes(codes, layout), fit_gain(spans, split_spans(walked), gain)

    def values(self, data: Tensor, head_dim: int, side: Side, layout: Layout) -> Tensor:
        windows = read_windows(find_segments(data, head_dim, side, layout), self.bits)
        return to_page(windows, head_dim, side)


TRELLIS = (
    Trellis("turbo4_tcq", 4, "the best 4 bits: as close as 5 bits elsewhere"),
    Trellis("turbo3_tcq", 3, "the best 3 bits: smaller than q4_0 and closer"),
    Trellis("turbo2_tcq", 2, "the best 2 bits: values beside better keys"),
)
