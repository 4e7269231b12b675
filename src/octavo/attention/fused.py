"""Attention over dense keys and values with its log-sum-exp: PyTorch's fused kernels, and explicit scores
where none of them fits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

__all__ = ["Part", "fused_attention", "prefill_told", "scored", "windowed_attention"]

Part = tuple[torch.Tensor, torch.Tensor]
"""out [H, n, D] and lse [H, n] float32."""

Fused = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, bool], Part]
"""q [H, n, D], k and v [G, N, D], scale, causal → 16-bit out [H, n, D] and lse [H, n]."""

Windowed = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, int], Part]
"""q [H, n, D], k and v [G, N, D] that end with q's own tokens, scale, window → out and lse."""


@cache
def fused_attention(head_dim: int, dtype: torch.dtype) -> Fused:
    """The fastest of PyTorch's attention kernels that takes this head dim and returns the log-sum-exp."""
    return next((kernel for kernel in (cudnn, flash) if takes(kernel, head_dim, dtype, True)), by_tiles)


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


@cache
def windowed_attention(head_dim: int, dtype: torch.dtype) -> Windowed:
    """The same under a sliding window: PyTorch has one, which reads no more than the window."""
    return flash_in_window if takes(flash_in_window, head_dim, dtype, 64) else by_tiles_in_window


def takes(kernel: Callable[..., Part], head_dim: int, dtype: torch.dtype, last: bool | int) -> bool:
    """Whether `kernel` runs on small heads of this size; `last` is its last argument."""
    q, k = (torch.zeros(h, 128, head_dim, dtype=dtype, device="cuda") for h in (4, 2))
    try:
        kernel(q, k, k, 1.0, last)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False
    return True


def flash_in_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int) -> Part:
    """FlashAttention 2 with a window: the last rows of k are q's own, so row i sees those up to i + N − n."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, scale=scale,
        window_size_left=window - 1, window_size_right=0,
    )  # fmt: skip
    return out[0].transpose(0, 1), lse[0]


def by_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> Part:
    """For head dims that neither takes: the scores in memory, `ROWS` rows at a time."""
    out, lse = scored(q, k, v, scale, offset=0 if causal else k.shape[1])
    return out.to(v.dtype), lse


def by_tiles_in_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int) -> Part:
    """The same under a window."""
    out, lse = scored(q, k, v, scale, offset=k.shape[1] - q.shape[1], window=window)
    return out.to(v.dtype), lse


ROWS = 256
"""Query tokens whose scores are in memory at once."""


def scored(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    *,
    offset: int,
    window: int | None = None,
    softcap: float | None = None,
) -> Part:
    """Attention with explicit scores, `ROWS` query tokens at a time, of the keys that one of them sees.

    The first query stands `offset` tokens behind the first key. A query sees no key behind it, and of a
    `window` the last so many, its own included; one that sees none has lse −inf and no output that
    means anything.
    """
    (h, n, d), (g, end, _) = q.shape, k.shape
    outs, lses = [], []
    for begin in range(offset, offset + n, ROWS):
        after = min(begin + ROWS, offset + n)
        first = 0 if window is None else max(0, begin - window + 1)
        last = max(first, min(after, end))
        some = q[:, begin - offset : after - offset].reshape(g, -1, d)
        scores = (some @ k[:, first:last].transpose(1, 2)).float().mul_(scale)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if window is not None or last > begin + 1:
            gap = torch.arange(begin, after, device=q.device)[:, None]
            gap = gap - torch.arange(first, last, device=q.device)
            hidden = (gap < 0) if window is None else (gap < 0) | (gap >= window)
            scores.view(g, h // g, after - begin, -1).masked_fill_(hidden, -torch.inf)
        lse = scores.logsumexp(-1)
        weights = scores.sub_(lse.unsqueeze(-1)).exp_().to(v.dtype)
        outs.append((weights @ v[:, first:last]).view(h, -1, d))
        lses.append(lse.view(h, -1))
    return torch.cat(outs, 1).float(), torch.cat(lses, 1)


def prefill_told(groups: list[tuple[int, int | None]], dtype: torch.dtype) -> str:
    """Which of these a prefill goes through in layers of (head dim, window), in words."""
    full = {fused_attention(d, dtype).__name__ for d, window in groups if window is None}
    slide = {windowed_attention(d, dtype).__name__ for d, window in groups if window is not None}
    return f"prefill through {', '.join(sorted(full | slide))}, soft caps there through explicit scores"
