"""A prefill chunk's attention on the GPU: past pages in stretches through a bounded scratch, its own tokens
exactly.

The parts' outputs are merged by log-sum-exp: out = Σ outᵢ · exp(lseᵢ − lse), lse = log Σ exp(lseᵢ).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from octavo.formats.base import PAGE
from octavo.kernels.blend import blend
from octavo.kernels.unpack import unpack_pages
from octavo.pages.bands import views
from octavo.pages.plan import sees
from octavo.pages.segment import Segment
from octavo.pages.store import SIDES, LayerPages

__all__ = ["STRETCH", "Past", "attend_chunk", "fused_attention", "plan_past"]

STRETCH = 512
"""Pages unpacked at once: 32,768 tokens, 128 MiB of scratch at 8 KV heads of 128 channels."""

Part = tuple[torch.Tensor, torch.Tensor]
"""out [H, n, D] and lse [H, n] float32."""


@dataclass(frozen=True)
class Past:
    """What n new tokens at rows [start, start + n) find stored.

    addresses  int32 on the device: all pages that hold earlier tokens, from the first one needed
    tokens     how many earlier tokens those pages hold
    spans      (first page, pages, band) of stretches to unpack at once, each in one band
    hidden     [n, tokens + n] where a window hides earlier or own tokens; None: everything earlier is seen
    """

    start: int
    n: int
    addresses: torch.Tensor
    tokens: int
    spans: list[tuple[int, int, int]]
    hidden: torch.Tensor | None


def plan_past(segment: Segment, window: int | None, device: torch.device, chunk: int | None = None) -> Past:
    """The stored tokens a segment within one chunk attends to."""
    base = segment.first * PAGE
    tokens = segment.computed - base
    addresses = torch.from_numpy(segment.pages[: -(-tokens // PAGE)].astype(np.int32)).to(device)
    hidden = None
    if window is not None:
        queries = segment.computed + np.arange(segment.n)
        keys = base + np.arange(tokens + segment.n)
        hidden = torch.from_numpy(~sees(queries, keys, window)).to(device)
    spans = []
    for view in views(segment, chunk):
        begin = view.segment.first - segment.first
        end = min(begin + len(view.segment.pages), len(addresses))
        spans += [(at, min(STRETCH, end - at), view.band) for at in range(begin, end, STRETCH)]
    return Past(segment.start, segment.n, addresses, tokens, spans, hidden)


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
    if past.hidden is not None or softcap is not None:
        out, lse = masked(q, k, v, pages, past, scale, softcap)
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


Fused = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, bool], Part]
"""q [H, n, D], k and v [G, N, D], scale, causal → 16-bit out [H, n, D] and lse [H, n]."""


@cache
def fused_attention(head_dim: int, dtype: torch.dtype) -> Fused:
    """The fastest of PyTorch's attention kernels that takes this head dim and returns the log-sum-exp."""
    for kernel in (cudnn, flash):
        q, k = (torch.zeros(h, 128, head_dim, dtype=dtype, device="cuda") for h in (4, 2))
        try:
            kernel(q, k, k, 1.0, True)
        except RuntimeError:
            continue
        return kernel
    return by_tiles


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> Part:
    """cuDNN's: twice as fast on Hopper."""
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q[None], k[None], v[None], None, True, 0.0, causal, False, scale=scale
    )
    return out[0], lse[0].view(len(q), -1)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> Part:
    """FlashAttention 2."""
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        q[None], k[None], v[None], 0.0, causal, False, scale=scale
    )
    return out[0], lse[0]


def by_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> Part:
    """For head dims that neither takes: the scores in memory, `ROWS` rows at a time."""
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1) if causal else None
    out, lse = scored(q, k, v, scale, None, hidden)
    return out.to(v.dtype), lse


def scored(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    softcap: float | None,
    hidden: torch.Tensor | None,
) -> Part:
    """Attention with explicit scores, `ROWS` query tokens at a time."""
    h, n, _ = q.shape
    g = len(k)
    outs, lses = [], []
    for first in range(0, n, ROWS):
        some = q[:, first : first + ROWS].reshape(g, -1, q.shape[-1])
        scores = (some @ k.transpose(1, 2)).float().mul_(scale)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if hidden is not None:
            rows = hidden[first : first + ROWS]
            scores.view(g, h // g, len(rows), -1).masked_fill_(rows, -torch.inf)
        lse = scores.logsumexp(-1)
        out = scores.sub_(lse.unsqueeze(-1)).exp_().to(v.dtype) @ v
        outs.append(out.view(h, -1, out.shape[-1]))
        lses.append(lse.view(h, -1))
    return torch.cat(outs, 1).float(), torch.cat(lses, 1)


ROWS = 256


def masked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: LayerPages,
    past: Past,
    scale: float,
    softcap: float | None,
) -> Part:
    """Under a window or a soft cap: stored and own tokens side by side, hidden ones masked.

    Windows bound what is stored; with a soft cap over all tokens the stretches are merged.
    """
    parts = []
    for band, begin, old_k, old_v in stretches(pages, past):
        hidden = None if past.hidden is None else past.hidden[:, begin : begin + old_k.shape[1]]
        parts.append(scored(q[band], old_k, old_v, scale, softcap, hidden))
    own = torch.ones(past.n, past.n, dtype=torch.bool, device=q.device).triu(1)
    hidden = own if past.hidden is None else past.hidden[:, past.tokens :]
    total = scored(q[0], k, v, scale, softcap, hidden)
    for part in parts:
        total = merge(total, part)
    return total


def merge(a: Part, b: Part) -> Part:
    """Rows that see nothing in a part carry lse = −inf and weight 0."""
    lse = torch.logaddexp(a[1], b[1])
    wa, wb = ((x - lse).exp().unsqueeze(-1) for x in (a[1], b[1]))
    return a[0] * wa + torch.where(wb > 0, b[0], 0) * wb, lse
