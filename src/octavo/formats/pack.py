"""Codes of 2 to 8 bits as bytes, and the order in which a warp owns the values of a page.

rows   Adjacent channels of a token form a group whose codes make one index, first code lowest
       (GROUPS). The low bytes of all groups come first, token by token; the bits above 8 follow as
       fields of whole bytes: byte j of these m bytes has groups j, j + m, j + 2m, ... of the page,
       first lowest. One table lookup then turns an index into a group's values.
tile   The words each lane of the decode kernel loads, 16 bytes a lane at a time (tile.py).

Eight-bit codes are signed bytes (two's complement) seen as uint8.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from octavo.formats.base import PAGE, Layout, Side
from octavo.formats.tile import LANES, TILE_HEAD_DIMS, lane_order, pack_tile, unpack_tile

__all__ = ["GROUPS", "LANES", "TILE_HEAD_DIMS", "lane_order", "pack", "read_values", "unpack"]

GROUPS = {2: 4, 3: 4, 4: 2, 5: 2, 6: 2, 8: 1}
"""Codes of one index, by bits of a code."""


def pack(codes: Tensor, bits: int, side: Side, layout: Layout) -> Tensor:
    """codes uint8 [N, S, D] below 2^bits → uint8 [N, S * D * bits // 8]."""
    if layout == "tile":
        return pack_tile(codes, bits, side)
    return _pack_rows(codes, bits)


def unpack(data: Tensor, bits: int, head_dim: int, side: Side, layout: Layout) -> Tensor:
    """The codes uint8 [N, S, D] that `pack` was given."""
    if layout == "tile":
        return unpack_tile(data, bits, head_dim, side)
    if bits == 8:
        return data.reshape(-1, PAGE, head_dim)
    return _expand_rows(data, bits, head_dim, tuple(range(1 << bits))).view(torch.uint8)


def read_values(
    data: Tensor, bits: int, head_dim: int, side: Side, layout: Layout, values: tuple[int, ...]
) -> Tensor:
    """values[code], each in -128..127, of every code of a packed page: int8 [N, S, D]."""
    if layout == "rows" and bits < 8:
        return _expand_rows(data, bits, head_dim, values)
    codes = unpack(data, bits, head_dim, side, layout)
    return torch.tensor(values, dtype=torch.int8, device=data.device)[codes.to(torch.int32)]


def _pack_rows(codes: Tensor, bits: int) -> Tensor:
    group = GROUPS[bits]
    parts = codes.reshape(len(codes), -1, group).to(torch.int32)
    index = parts[..., 0].clone()
    for i in range(1, group):
        index |= parts[..., i] << (bits * i)
    low = (index & 255).to(torch.uint8)
    spare = bits * group - 8
    if not spare:
        return low
    fields = (index >> 8).view(len(codes), 8 // spare, -1)
    high = fields[:, 0].clone()
    for i in range(1, 8 // spare):
        high |= fields[:, i] << (spare * i)
    return torch.cat((low, high.to(torch.uint8)), -1)


def _row_indices(data: Tensor, bits: int, head_dim: int) -> Tensor:
    """The index of every group: int32 [N, S * D / group]."""
    groups = PAGE * head_dim // GROUPS[bits]
    low, high = data[:, :groups].to(torch.int32), data[:, groups:]
    spare = bits * GROUPS[bits] - 8
    if not spare:
        return low
    mask = (1 << spare) - 1
    fields = torch.cat([(high >> (spare * i)) & mask for i in range(8 // spare)], 1)
    return low.add_(fields.to(torch.int32), alpha=256)


def _expand_rows(data: Tensor, bits: int, head_dim: int, values: tuple[int, ...]) -> Tensor:
    """values[code] through tables that yield two or four at once, which makes a page cheap on the CPU."""
    if bits == 4:  # two groups a lookup: 16-bit words, little-endian
        index, group = data.contiguous().view(torch.uint16).to(torch.int32), 4
    else:
        index, group = _row_indices(data, bits, head_dim), GROUPS[bits]
    table = _group_table(values, bits, group, data.device)
    return torch.index_select(table, 0, index.flatten()).view(torch.int8).view(-1, PAGE, head_dim)


@cache
def _group_table(values: tuple[int, ...], bits: int, group: int, device: torch.device) -> Tensor:
    """The `group` one-byte values of every index, as one wide integer each: [2^(bits * group)]."""
    index = torch.arange(1 << (bits * group))
    codes = torch.stack([(index >> (bits * i)) & ((1 << bits) - 1) for i in range(group)], -1)
    table = torch.tensor(values, dtype=torch.int8)[codes]
    return table.view({2: torch.int16, 4: torch.int32}[group]).flatten().to(device)
