"""The tile layout: the words each lane of the decode kernel loads, in the order its registers want them.

A warp multiplies with mma.m16n8k32; in the B operand (32 deep, 8 wide) lane 4c + t holds column c and the
depths of quad position t (PTX ISA, "Matrix fragments for mma.m16n8k32", .s8). Depths may be permuted as
long as both operands agree, which makes a lane own neighbours:

    keys    tile j = 0..7, step s: token 16 (c // 2) + 2j + c % 2, channels 32s + 8t .. + 7
    values  tile (s, i), i = 0..3:  channel 32s + 4c + i,          tokens   16t .. + 15

Every tile lies in one span of 32 channels, so whatever the span of a format's gains, a tile has one. Codes
may as well be the A operand (16 wide), where a lane holds columns c and c + 8: two tiles of B make one of A.

A lane's 2 D values, taken 32 at a time, become `bits` words (a unit). Units follow one another, and word
quads of the 32 lanes alternate: [quad][lane][4 words], so a warp loads 512 adjacent bytes.

    bits 8, 4, 2   one little-endian stream of codes
    bits 3         nibble n of word i: code 8i + n in bits 0-2; bit 3 is bit i of code 24 + n
    bits 5         four words of low nibbles, then a word with bit 4 of code 8i + 2b + p at bit 8b + 2i + p
    bits 6         four words of low nibbles, then bits 4-5 of code 8i + 2b + p at bit 8b + 4(i % 2) + 2p of
                   word 4 + i // 2
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE, Side

__all__ = [
    "LANES",
    "TILE_HEAD_DIMS",
    "check_tile",
    "lane_order",
    "lane_tokens",
    "load_lanes",
    "pack_tile",
    "store_lanes",
    "unpack_tile",
]

LANES = 32
"""Threads of a warp."""

UNIT = 32
"""Codes that share `bits` words."""

TILE_HEAD_DIMS = (64, 128, 256, 512)
"""Head dims the decode kernel's tiles cover."""

Field = tuple[int, int, int, int]
"""word, bit in the word, lowest bit of the code, bits."""


def check_tile(head_dim: int) -> None:
    """Raise InvalidRequest where the tile layout does not exist."""
    if head_dim not in TILE_HEAD_DIMS:
        known = ", ".join(map(str, TILE_HEAD_DIMS))
        raise InvalidRequest(f"no tile layout for head_dim {head_dim} (there is for {known}); use rows")


@cache
def lane_tokens(device: torch.device | None = None) -> Tensor:
    """Tokens in the order their gains lie in a span: the eight of each c together. int64 [S].

    They are the tokens whose keys lanes 4c .. + 3 own, hence whose scores they hold.
    """
    c = torch.arange(8)[:, None]
    return (16 * (c // 2) + c % 2 + 2 * torch.arange(8)).flatten().to(device)


@cache
def lane_order(head_dim: int, side: Side, device: torch.device | None = None) -> Tensor:
    """Flat positions token * D + channel of the values each lane owns, in its order: int64 [32, 2 D]."""
    check_tile(head_dim)
    lane = torch.arange(LANES)
    c, t = (lane // 4)[:, None, None, None], (lane % 4)[:, None, None, None]
    step = torch.arange(head_dim // 32)
    if side == "k":
        token = 16 * (c // 2) + c % 2 + 2 * torch.arange(8)[:, None, None]
        channel = 32 * step[:, None] + 8 * t + torch.arange(8)
    else:
        token = 16 * t + torch.arange(16)
        channel = 32 * step[:, None, None] + 4 * c + torch.arange(4)[:, None]
    return (token * head_dim + channel).flatten(1).to(device)


def pack_tile(codes: Tensor, bits: int, side: Side) -> Tensor:
    """codes uint8 [N, S, D] below 2^bits → uint8 [N, S * D * bits // 8]."""
    head_dim = codes.shape[-1]
    order, (word, at, low, mask) = lane_order(head_dim, side, codes.device), _fields(bits, codes.device)
    units = codes.flatten(1)[:, order].view(len(codes), LANES, -1, UNIT).to(torch.int32)
    words = torch.zeros(*units.shape[:3], bits, dtype=torch.int32, device=codes.device)
    parts = (
        units.unsqueeze(-1) >> low & mask
    ) << at  # bits that no two fields share: their sum is their union
    words.index_add_(-1, word.flatten(), parts.flatten(-2))
    return store_lanes(words.flatten(2))


def unpack_tile(data: Tensor, bits: int, head_dim: int, side: Side) -> Tensor:
    """The codes uint8 [N, S, D] that `pack_tile` was given."""
    order, (word, at, low, mask) = lane_order(head_dim, side, data.device), _fields(bits, data.device)
    words = load_lanes(data).view(len(data), LANES, -1, bits)
    units = ((words[..., word] >> at & mask) << low).sum(-1, dtype=torch.int32)
    codes = torch.empty(len(data), PAGE * head_dim, dtype=torch.uint8, device=data.device)
    codes[:, order.flatten()] = units.to(torch.uint8).flatten(1)
    return codes.view(-1, PAGE, head_dim)


def store_lanes(words: Tensor) -> Tensor:
    """int32 words of each lane [N, 32, W], W a multiple of 4 → bytes [N, 128 W] as a warp loads them."""
    quads = words.reshape(len(words), LANES, -1, 4).transpose(1, 2).contiguous()
    return quads.flatten(1).view(torch.uint8)


def load_lanes(data: Tensor) -> Tensor:
    """Bytes of `store_lanes` → int32 [N, 32, W]."""
    quads = data.contiguous().view(torch.int32).view(len(data), -1, LANES, 4)
    return quads.transpose(1, 2).flatten(2)


@cache
def _fields(bits: int, device: torch.device) -> Tensor:
    """Where the bits of the 32 codes of a unit lie, each code's in a few fields: int32 [4, 32, fields] of
    word, bit in the word, lowest bit of the code, mask."""
    parts = _places(bits)
    most = max(map(len, parts))
    rows = [[(w, at, low, (1 << width) - 1) for w, at, low, width in part] for part in parts]
    full = torch.tensor([row + [(0, 0, 0, 0)] * (most - len(row)) for row in rows], dtype=torch.int32)
    return full.permute(2, 0, 1).contiguous().to(device)


def _places(bits: int) -> list[tuple[Field, ...]]:
    if bits == 3:
        low: list[tuple[Field, ...]] = [((u // 8, 4 * (u % 8), 0, 3),) for u in range(24)]
        return low + [tuple((i, 4 * n + 3, i, 1) for i in range(3)) for n in range(8)]
    if bits in (2, 4, 8):
        each = UNIT // bits
        return [((u // each, bits * (u % each), 0, bits),) for u in range(UNIT)]
    return [(_nibble(u), _high_bits(u, bits - 4)) for u in range(UNIT)]


def _nibble(code: int) -> Field:
    return (code // 8, 4 * (code % 8), 0, 4)


def _high_bits(code: int, width: int) -> Field:
    """Bits above the nibble: those of one parity in a word of low nibbles lie 8 bits apart."""
    place = 2 * (code // 8) + code % 2
    each = 8 // width
    return (4 + place // each, 8 * (code % 8 // 2) + width * (place % each), 4, width)
