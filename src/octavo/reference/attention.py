"""Attention of a step's rows over packed and plain pages, in bounded tiles, float32.

Each tile yields a partial softmax (o, m, l): m the row's maximum score, l = Σ exp(score − m), o = Σ exp(score
− m) · v. Partials are merged exactly: M = max m, L = Σ l·exp(m − M), O = Σ o·exp(m − M); the result is O / L.

Letters: T tokens, H query heads, G KV heads, R = H / G query heads of a KV head, D head dim, N keys of a
tile, B segments of n tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from octavo.formats.base import PAGE, Side
from octavo.pages.plan import Item, Plan, Slots, Tail
from octavo.pages.store import LayerPages

__all__ = ["attend"]

LOWEST = -1e30
"""Stands for the maximum of a row that sees nothing: finite, so that no NaN arises."""
TILE_SCORES = 1 << 23
"""Scores held at once."""
TILE_PAGES = 32
"""Pages unpacked at once."""


class Partial(NamedTuple):
    """Softmax over part of the keys: o [T, G, R, D], m and l [T, G, R]."""

    o: torch.Tensor
    m: torch.Tensor
    l: torch.Tensor  # noqa: E741


def attend(
    q: torch.Tensor,
    pages: LayerPages,
    plan: Plan,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [T, H, D] of this step, whose keys are already in their plain slots → [T, H, D] float32.

    `scale` multiplies scores; `softcap` c maps them to c·tanh(s / c); `sinks` [H] join each row's
    denominator. Under bands q is [B · T, H, D], band by band.
    """
    rows, h, d = q.shape
    t = len(plan.slots)
    g = pages.k_plain.shape[1]
    bands = (q.float() * scale).view(rows // t, t, g, h // g, d)
    total = attend_tails(bands[0], pages, plan, softcap)
    for item in plan.items:
        q = bands[item.band]
        if len(item.rows) == t:
            total = merge(total, attend_item(q, pages, item, softcap))
        else:
            merge_rows(total, attend_item(q.index_select(0, item.rows), pages, item, softcap), item.rows)
    if sinks is not None:
        total = add_sinks(total, sinks.float().view(g, h // g))
    return (total.o / total.l.unsqueeze(-1)).reshape(t, h, d)


def attend_tails(q: torch.Tensor, pages: LayerPages, plan: Plan, softcap: float | None) -> Partial:
    if plan.whole:
        return attend_tail(q, pages, plan.tails[0], softcap)
    total = Partial(torch.empty_like(q), q.new_empty(q.shape[:-1]), q.new_empty(q.shape[:-1]))
    for tail in plan.tails:
        part = attend_tail(q.index_select(0, tail.rows), pages, tail, softcap)
        for whole, piece in zip(total, part, strict=True):
            whole[tail.rows] = piece
    return total


def attend_tail(q: torch.Tensor, pages: LayerPages, tail: Tail, softcap: float | None) -> Partial:
    """q [B·n, G, R, D]: each of B segments reads its own plain pages under its causal mask."""
    _, g, r, d = q.shape
    b, n, keys = tail.bias.shape

    def read(side: torch.Tensor) -> torch.Tensor:
        some = side.index_select(0, tail.slots).view(b, keys // PAGE, g, PAGE, d)
        return some.transpose(1, 2).reshape(b, g, keys, d).float()

    k, v = read(pages.k_plain), read(pages.v_plain)
    for side in (k, v):  # not even a number stands there
        side.masked_fill_(tail.unseen[:, None, :, None], 0.0)
    heads = q.view(b, n, g, r, d).transpose(1, 2).reshape(b, g, n * r, d)
    bias = tail.bias[:, None, :, None]
    return by_rows(softmax_part(heads, k, v, r, bias, softcap), n, r)


def attend_item(q: torch.Tensor, pages: LayerPages, item: Item, softcap: float | None) -> Partial:
    """q [T, G, R, D]: all rows read the same complete pages, tile by tile."""
    t, g, r, d = q.shape
    heads = q.transpose(0, 1).reshape(1, g, t * r, d)
    total = None
    for k, v, bias in tiles(pages, item, max(1, TILE_SCORES // (PAGE * g * t * r))):
        part = softmax_part(heads, k, v, r, bias, softcap)
        total = part if total is None else merge(total, part)
    assert total is not None
    return by_rows(total, t, r)


def by_rows(part: Partial, n: int, r: int) -> Partial:
    """[B, G, n·R, ...] → [B·n, G, R, ...]"""

    def turn(x: torch.Tensor) -> torch.Tensor:
        b, g = x.shape[:2]
        return x.view(b, g, n, r, *x.shape[3:]).transpose(1, 2).reshape(b * n, g, r, *x.shape[3:])

    return Partial(*(turn(x) for x in part))


def tiles(
    pages: LayerPages, item: Item, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Keys and values [1, G, N, D] of up to `size` pages at a time, and their bias [T, 1, N]."""
    size = min(size, TILE_PAGES)
    base = 0
    for slots, read in ((item.packed, unpack), (item.plain, plain)):
        for first in range(0, len(slots), size):
            some = slots[first : first + size]
            bias = None
            if item.bias is not None:
                begin = base + PAGE * first
                bias = item.bias[:, None, begin : begin + PAGE * len(some)]
            yield read(pages, some, "k"), read(pages, some, "v"), bias
        base += PAGE * len(slots)


def pick(data: torch.Tensor, slots: Slots) -> torch.Tensor:
    """The pages in `slots`, without a copy where they lie one behind the other."""
    if isinstance(slots, range):
        return data[slots.start : slots.stop]
    return data.index_select(0, slots)


def unpack(pages: LayerPages, slots: Slots, side: Side) -> torch.Tensor:
    """Packed slots → [1, G, N, D] float32."""
    data, codec = (pages.k_packed, pages.k_codec) if side == "k" else (pages.v_packed, pages.v_codec)
    _, g, size = data.shape
    some = pick(data, slots).transpose(0, 1).reshape(-1, size)
    return codec.decode(some).view(1, g, len(slots) * PAGE, -1)


def plain(pages: LayerPages, slots: Slots, side: Side) -> torch.Tensor:
    """Plain slots → [1, G, N, D] float32."""
    data = pages.k_plain if side == "k" else pages.v_plain
    _, g, _, d = data.shape
    return pick(data, slots).transpose(0, 1).reshape(1, g, len(slots) * PAGE, d).float()


def softmax_part(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    r: int,
    bias: torch.Tensor | None,
    softcap: float | None,
) -> Partial:
    """q [B, G, n·R, D] (scaled), k and v [B, G, N, D], bias broadcasting to [B, G, n, R, N] → [B, G, n·R,
    ...]."""
    scores = q @ k.transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        b, g, rows, keys = scores.shape
        scores.view(b, g, rows // r, r, keys).add_(bias)
    m = scores.amax(-1)
    if bias is not None:
        m = m.clamp_min_(LOWEST)
    p = scores.sub_(m.unsqueeze(-1)).exp_()
    return Partial(p @ v, m, p.sum(-1))


def merge(a: Partial, b: Partial) -> Partial:
    m = torch.maximum(a.m, b.m)
    wa, wb = (a.m - m).exp_(), (b.m - m).exp_()
    o = torch.addcmul(a.o * wa.unsqueeze(-1), b.o, wb.unsqueeze(-1))
    return Partial(o, m, torch.addcmul(a.l * wa, b.l, wb))


def merge_rows(total: Partial, part: Partial, rows: torch.Tensor) -> None:
    """Merge `part` into the given rows of `total`, in place."""
    for whole, piece in zip(total, merge(Partial(*(x[rows] for x in total)), part), strict=True):
        whole[rows] = piece


def add_sinks(total: Partial, sinks: torch.Tensor) -> Partial:
    """A sink is a key with score `sinks` [G, R] and value 0."""
    m = torch.maximum(total.m, sinks)
    w = (total.m - m).exp()
    return Partial(total.o * w.unsqueeze(-1), m, total.l * w + (sinks - m).exp())
