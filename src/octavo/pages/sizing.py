"""How many pages of each kind a memory budget buys, and the reasons in words.

Per layer group and sequence, plain pages are needed for the sequence's first `exact_pages`, the young pages,
the open page and the chunk being prefilled; everything older is packed. Groups that are never packed hold
only plain pages: a sliding group those of its window, a full group all.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from octavo.errors import InvalidRequest, PoolFull
from octavo.formats.base import PAGE

__all__ = ["GroupNeed", "GroupSize", "ceil_pages", "fitting_chunk", "parse_bytes", "size_pool"]

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: float | str) -> int:
    """Bytes from 123, "800MB", "4G" or "1.5GiB" (powers of 1024)."""
    if isinstance(text, int | float) and not isinstance(text, bool) and math.isfinite(text):
        return int(text)
    match = isinstance(text, str) and re.fullmatch(
        r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE
    )
    if not match:
        raise InvalidRequest(f"memory is {text!r}; write bytes or a number with K, M, G or T, such as 4GB")
    return int(float(match[1]) * UNITS[match[2].upper()])


@dataclass(frozen=True)
class GroupNeed:
    """What one page of a group costs and how a sequence uses the group."""

    name: str
    plain_bytes: int
    packed_bytes: int  # 0: never packed
    window: int | None


@dataclass(frozen=True)
class GroupSize:
    """Slots of one group."""

    name: str
    plain: int
    packed: int
    bytes: int
    reason: str


def ceil_pages(tokens: int) -> int:
    return -(-tokens // PAGE)


LEAST_CHUNK, CHUNK_SHARE = 512, 32
"""Tokens a chunk is not halved below, and the part of a pool that its plain pages may take."""


def fitting_chunk(needs: list[GroupNeed], budget: int, most: int) -> int:
    """`most` tokens, halved until their pages, unpacked, take no more than a 32nd of `budget`. What a step
    needs beside the pool grows with its tokens too."""
    page = sum(need.plain_bytes for need in needs)
    while most > LEAST_CHUNK and ceil_pages(most) * page * CHUNK_SHARE > budget:
        most //= 2
    return most


def size_pool(
    needs: list[GroupNeed], budget: int, *, sequences: int, recent: int, exact_pages: int, chunk: int
) -> list[GroupSize]:
    """Slots per group for `budget` bytes; at most half of it goes to what does not grow with context."""
    young = exact_pages + ceil_pages(recent) + 2
    scratch = ceil_pages(chunk) + 1

    def fixed(need: GroupNeed, n: int) -> int:
        """Plain pages for n sequences in a group whose plain use is bounded; 0 where it grows with
        context."""
        if need.window is not None and not need.packed_bytes:
            return n * (ceil_pages(need.window) + 2) + scratch
        return n * young + scratch if need.packed_bytes else 0

    n = sequences
    while n > 1 and sum(fixed(g, n) * g.plain_bytes for g in needs) > budget // 2:
        n -= max(1, n // 8)
    spent = sum(fixed(g, n) * g.plain_bytes for g in needs)
    growing = [g for g in needs if g.packed_bytes or g.window is None]
    per_page = sum(g.packed_bytes or g.plain_bytes for g in growing)
    rest = (budget - spent) // per_page if growing else 0
    if (rest < 2 and growing) or budget < spent:
        raise PoolFull(
            f"a pool of {budget:,} bytes cannot hold one sequence: "
            f"{spent:,} bytes go to open and young pages and "
            f"{per_page:,} to each further page of {PAGE} tokens; raise --memory or lower --chunk"
        )
    return [describe(g, fixed(g, n), rest if g in growing else 0, n, chunk) for g in needs]


def describe(need: GroupNeed, plain: int, rest: int, sequences: int, chunk: int) -> GroupSize:
    packed = rest if need.packed_bytes else 0
    plain += 0 if need.packed_bytes else rest
    used = plain * need.plain_bytes + packed * need.packed_bytes
    if packed:
        reason = (
            f"{plain} plain pages for {sequences} sequences' first, young and open pages and a chunk of "
            f"{chunk} tokens; the rest packed"
        )
    elif need.window is not None:
        reason = (
            f"never packed: the windows of {need.window} tokens of {sequences} sequences and a chunk of "
            f"{chunk} tokens"
        )
    else:
        reason = "never packed: every page is kept in the model's dtype"
    return GroupSize(need.name, plain, packed, used, reason)
