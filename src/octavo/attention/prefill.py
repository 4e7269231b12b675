"""A prefill chunk's attention on the GPU: past pages in stretches through a bounded scratch, or of a sliding
window as a whole; its own tokens exactly.

Stretches' outputs are merged by log-sum-exp: out = Σ outᵢ · exp(lseᵢ − lse), lse = log Σ exp(lseᵢ).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from octavo.attention.fused import Part, fused_attention, scored, windowed_attention
from octavo.formats.base import PAGE
from octavo.kernels.blend import blend
from octavo.kernels.unpack import unpack_pages
from octavo.pages.bands import views
from octavo.pages.segment import Segment
from octavo.pages.store import SIDES, LayerPages

__all__ = ["STRETCH", "Past", "attend_chunk", "plan_past"]

STRETCH = 512
"""Pages unpacked at once: 32,768 tokens, 128 MiB of scratch at 8 KV heads of 128 channels."""


@dataclass(frozen=True)
class Past:
    """What n new tokens at rows [start, start + n) find stored.

    addresses  int32 on the device: all pages that hold earlier tokens, from the first one needed
    tokens     how many earlier tokens those pages hold
    spans      (first page, pages, band) of stretches to unpack at once, each in one band
    window     how many tokens a row sees, its own included; None: everything earlier
    """

    start: int
    n: int
    addresses: torch.Tensor
    tokens: int
    spans: list[tuple[int, int, int]]
    window: int | None


def plan_past(segment: Segment, window: int | None, device: torch.device, chunk: int | None = None) -> Past:
    """The stored tokens a segment within one chunk attends to."""
    base = segment.first * PAGE
    tokens = segment.computed - base
    addresses = torch.from_numpy(segment.pages[: -(-tokens // PAGE)].astype(np.int32)).to(device)
    spans = []
    for view in views(segment, chunk):
        begin = view.segment.first - segment.first
        end = min(begin + len(view.segment.pages), len(addresses))
        spans += [(at, min(STRETCH, end - at), view.band) for at in range(begin, end, STRETCH)]
    return Past(segment.start, segment.n, addresses, tokens, spans, window)


def stretches(pages: LayerPages, past: Past) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
    """band, first token, keys and values [G, N, D] of the stored tokens, a stretch of pages at a time."""
    for first, count, band in past.spans:
        some = past.addresses[first : first + count]
        tokens = min(past.tokens - first * PAGE, count * PAGE)
        k, v = (unpack_pages(pages, some, side)[:, :tokens] for side in SIDES)
        yield band, first * PAGE, k, v


def attend_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: LayerPages,
    past: Past,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q [bands, n, H, D], k and v [n, G, D] of the chunk → [n, H, D]."""
    q, k, v = q.transpose(1, 2), k.transpose(0, 1), v.transpose(0, 1)
    if softcap is not None:
        out, lse = capped(q, k, v, pages, past, scale, softcap)
    elif past.window is not None:
        out, lse = in_window(q[0], k, v, pages, past, scale, past.window)
    else:
        out, lse = in_stretches(q, k, v, pages, past, scale)
    if sinks is not None:
        out = out * torch.sigmoid(lse - sinks[:, None]).unsqueeze(-1)
    return out.transpose(0, 1).to(v.dtype)


def in_stretches(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pages: LayerPages, past: Past, scale: float
) -> Part:
    """q [bands, H, n, D]: own tokens causally, then all earlier ones, a stretch of pages at a time."""
    fused = fused_attention(q.shape[-1], q.dtype)
    out, lse = fused(q[0], k, v, scale, True)
    acc, lse = out.float().contiguous(), lse.contiguous()
    for band, _, old_k, old_v in stretches(pages, past):
        blend(acc, lse, *fused(q[band], old_k, old_v, scale, False))
    return acc, lse


def in_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: LayerPages,
    past: Past,
    scale: float,
    window: int,
) -> Part:
    """q [H, n, D]: what a window reaches back to is little, so it is unpacked whole, own tokens behind it."""
    if past.tokens:
        old = (unpack_pages(pages, past.addresses, side)[:, : past.tokens] for side in SIDES)
        k, v = (torch.cat(pair, 1) for pair in zip(old, (k, v), strict=True))
    return windowed_attention(q.shape[-1], q.dtype)(q, k, v, scale, window)


def capped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: LayerPages,
    past: Past,
    scale: float,
    softcap: float,
) -> Part:
    """Under a soft cap, with a window or without: explicit scores of own tokens, then of all earlier ones, a
    stretch of pages at a time."""
    total = scored(q[0], k, v, scale, offset=0, window=past.window, softcap=softcap)
    for band, first, old_k, old_v in stretches(pages, past):
        offset = past.tokens - first
        part = scored(q[band], old_k, old_v, scale, offset=offset, window=past.window, softcap=softcap)
        total = merge(total, part)
    return total


def merge(a: Part, b: Part) -> Part:
    """Rows that see nothing in a part carry lse = −inf and weight 0."""
    lse = torch.logaddexp(a[1], b[1])
    wa, wb = ((x - lse).exp().unsqueeze(-1) for x in (a[1], b[1]))
    return a[0] * wa + torch.where(wb > 0, b[0], 0) * wb, lse
