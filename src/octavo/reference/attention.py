"""Attention of a step's rows over packed and plain pages, in bounded tiles, float32.

Each tile yields a partial softmax (o, m, l): m the row's maximum score, l = Σ exp(score − m), o = Σ exp(score − m) · v.
Partials are merged exactly: M = max m, L = Σ l·exp(m − M), O = Σ o·exp(m − M); the result is O / L.

Letters: T rows of tokens, H query heads, G KV heads, R = H / G heads of a group, D head dim, N keys of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from octavo.pages.plan import Item, Plan, Tail
from octavo.formats.codec import PageCodec

__all__ = ["LayerPages", "attend"]

LOWEST = -1e30
"""Stands for the maximum of a row that sees nothing: finite, so that no NaN arises."""
TILE_SCORES = 1 << 23
"""Scores held at once; bounds the unpacked keys of a tile too."""


@dataclass(frozen=True)
class LayerPages:
    """One layer's pages: plain [slots, G, 64, D], packed uint8 [slots, G, bytes], and their codecs."""

    k_plain: torch.Tensor
    v_plain: torch.Tensor
    k_packed: torch.Tensor
    v_packed: torch.Tensor
    k_codec: PageCodec
    v_codec: PageCodec


class Partial(NamedTuple):
    """Softmax over part of the keys: o [B, N, D], m and l [B, N]."""

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
    """q [T, H, D] of this step, whose keys are already in their plain slots → [T, H, D].

    `scale` multiplies scores; `softcap` c maps them to c·tanh(s / c); `sinks` [H] join each row's denominator.
    """
    t, h, d = q.shape
    g = pages.k_plain.shape[1]
    q = (q.float() * scale).view(t, g, h // g, d).transpose(0, 1)  # [G, T, R, D]
    total = attend_tails(q, pages, plan, softcap)
    for item in plan.items:
        every = len(item.rows) == t
        part = attend_item(q if every else q[:, item.rows], pages, item, softcap)
        total = merge(total, part) if every else merge_rows(total, part, item.rows)
    if sinks is not None:
        total = add_sinks(total, sinks.float().view(g, 1, h // g))
    return (total.o / total.l.unsqueeze(-1)).transpose(0, 1).reshape(t, h, d)


def attend_tails(q: torch.Tensor, pages: LayerPages, plan: Plan, softcap: float | None) -> Partial:
    if plan.whole:
        return attend_tail(q, pages, plan.tails[0], softcap)
    o = torch.empty_like(q)
    m, l = q.new_empty(q.shape[:-1]), q.new_empty(q.shape[:-1])  # noqa: E741
    for tail in plan.tails:
        rows = tail.rows.flatten()
        part = attend_tail(q[:, rows], pages, tail, softcap)
        o[:, rows], m[:, rows], l[:, rows] = part
    return Partial(o, m, l)


def attend_tail(q: torch.Tensor, pages: LayerPages, tail: Tail, softcap: float | None) -> Partial:
    """q [G, B·n, R, D]: each of B segments reads its own plain pages under its causal mask."""
    g, _, r, d = q.shape
    b, n, keys = tail.visible.shape
    k = pages.k_plain[tail.slots].transpose(1, 2).reshape(b * g, keys, d).float()
    v = pages.v_plain[tail.slots].transpose(1, 2).reshape(b * g, keys, d).float()
    written = tail.visible.any(1)  # slots nobody may see can hold anything, NaN too
    v = v.view(b, g, keys, d).masked_fill(~written[:, None, :, None], 0.0).view(b * g, keys, d)
    q = q.reshape(g, b, n * r, d).transpose(0, 1).reshape(b * g, n * r, d)
    mask = tail.visible[:, None, :, None, :].expand(b, g, n, r, keys).reshape(b * g, n * r, keys)
    part = softmax_part(q, k, v, mask, softcap)
    return Partial(*(x.view(b, g, n, r, *x.shape[2:]).transpose(0, 1).reshape(g, b * n, r, *x.shape[2:]) for x in part))


def attend_item(q: torch.Tensor, pages: LayerPages, item: Item, softcap: float | None) -> Partial:
    """q [G, T, R, D]: all rows read the same complete pages, tile by tile."""
    g, t, r, d = q.shape
    flat = q.reshape(g, t * r, d)
    total = None
    for k, v, visible in tiles(pages, item, max(1, TILE_SCORES // (64 * flat.shape[0] * flat.shape[1]))):
        mask = None if visible is None else visible.repeat_interleave(r, 0).expand(g, -1, -1)
        part = softmax_part(flat, k, v, mask, softcap)
        total = part if total is None else merge(total, part)
    assert total is not None
    return Partial(*(x.view(g, t, r, *x.shape[2:]) for x in total))


def tiles(
    pages: LayerPages, item: Item, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Keys and values [G, N, D] of up to `size` pages at a time, with their part of the mask."""
    size = min(size, 64)
    for packed, slots in ((True, item.packed), (False, item.plain)):
        base = 0 if packed else 64 * len(item.packed)
        for first in range(0, len(slots), size):
            some = slots[first : first + size]
            read = unpack if packed else plain
            begin = base + 64 * first
            mask = None if item.visible is None else item.visible[:, begin : begin + 64 * len(some)]
            yield read(pages, some, "k"), read(pages, some, "v"), mask


def unpack(pages: LayerPages, slots: torch.Tensor, side: str) -> torch.Tensor:
    data, codec = (pages.k_packed, pages.k_codec) if side == "k" else (pages.v_packed, pages.v_codec)
    data = data.transpose(0, 1)[:, slots]
    g, n, size = data.shape
    return codec.decode(data.reshape(g * n, size)).view(g, n * 64, -1)


def plain(pages: LayerPages, slots: torch.Tensor, side: str) -> torch.Tensor:
    data = (pages.k_plain if side == "k" else pages.v_plain).transpose(0, 1)[:, slots]
    return data.reshape(data.shape[0], -1, data.shape[-1]).float()


def softmax_part(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor | None, softcap: float | None
) -> Partial:
    """q [B, M, D] (scaled), k and v [B, N, D], visible [B, M, N] → partial over these N keys."""
    scores = torch.bmm(q, k.transpose(1, 2))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if visible is not None:
        scores = scores.masked_fill_(~visible, -torch.inf)
    m = scores.amax(-1)
    if visible is not None:
        m = m.clamp_min(LOWEST)
    p = scores.sub_(m.unsqueeze(-1)).exp_()
    return Partial(torch.bmm(p, v), m, p.sum(-1))


def merge(a: Partial, b: Partial) -> Partial:
    m = torch.maximum(a.m, b.m)
    wa, wb = (a.m - m).exp(), (b.m - m).exp()
    return Partial(a.o * wa.unsqueeze(-1) + b.o * wb.unsqueeze(-1), m, a.l * wa + b.l * wb)


def merge_rows(total: Partial, part: Partial, rows: torch.Tensor) -> Partial:
    """Merge `part` into the given rows (dim 1) of `total`, in place."""
    for whole, piece in zip(total, merge(Partial(*(x[:, rows] for x in total)), part), strict=True):
        whole[:, rows] = piece
    return total


def add_sinks(total: Partial, sinks: torch.Tensor) -> Partial:
    """A sink is a key with score `sinks` and value 0."""
    m = torch.maximum(total.m, sinks)
    w = (total.m - m).exp()
    return Partial(total.o * w.unsqueeze(-1), m, total.l * w + (sinks - m).exp())
