"""New queries, keys and values scaled, rotated and stored in one launch: the Python side of
cuda/append.cu."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from octavo.formats.rotation import random_signs, rotation_block
from octavo.kernels.launch import VECTOR_THREADS, Kernel, load_kernel, vector_defines, vector_grid
from octavo.pages.bands import Turns

__all__ = ["append_defines", "append_rows", "turn_back"]


def append_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_plain: Tensor,
    v_plain: Tensor,
    slots: Tensor,
    offsets: Tensor,
    *,
    turn_k: bool,
    turn_v: bool,
    scales: Tensor | None = None,
    keep: bool = False,
    turns: Turns | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Store k, v [T, G, D] in plain slots [T] at offsets [T] (int64) of one layer's pages [S, G, 64, D].

    Keys are multiplied and queries q [T, H, D] divided by `scales` [G, D], then rotated where `turn_k`;
    values where `turn_v`. Returns q so treated, and k and v too if `keep` (else as they came). With `turns`
    q comes back once for each band, [bands · T, H, D]. All in one 16-bit dtype; channels are contiguous.
    Launches only.
    """
    t, h, d = q.shape
    g = k.shape[1]
    bands = turns.bands if turns else 1
    q_out = torch.empty(bands * t, h, d, dtype=q.dtype, device=q.device)
    k_out, v_out = (torch.empty(t, g, d, dtype=q.dtype, device=q.device) if keep else None for _ in range(2))
    signs = sign_tables(d, q.device)
    _kernel("append", d, q.dtype == torch.float16)(
        vector_grid(t * (bands * h + 2 * g)),
        *_strided(q), *_strided(k), *_strided(v), q_out, k_out, v_out, k_plain, v_plain, slots, offsets,
        *signs, scales, int(turn_k), int(turn_v), t, h, g, bands, *_turning(turns),
    )  # fmt: skip
    return q_out, k if k_out is None else k_out, v if v_out is None else v_out


def _turning(turns: Turns | None) -> tuple[Tensor | None, ...]:
    if turns is None:
        return (None,) * 5
    return turns.cos, turns.sin, turns.partner, turns.reach, turns.counts


def turn_back(out: Tensor) -> Tensor:
    """Rotate attention's output [T, H, D] (contiguous) back, in place."""
    t, h, d = out.shape
    kernel = _kernel("turn_back", d, out.dtype == torch.float16)
    kernel(vector_grid(t * h), out, *sign_tables(d, out.device), ctypes.c_int64(t * h))
    return out


@cache
def sign_tables(head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rotation's signs before and after, float32 [D]."""
    first, last = (random_signs(head_dim, which).to(device) for which in ("in", "out"))
    return first, last


def append_defines(head_dim: int, half: bool) -> tuple[tuple[str, int], ...]:
    """Macros of cuda/append.cu."""
    return vector_defines(head_dim, half, TURN=rotation_block(head_dim))


@cache
def _kernel(name: str, head_dim: int, half: bool) -> Kernel:
    return load_kernel("append.cu", name, append_defines(head_dim, half), VECTOR_THREADS, 0, early=True)


def _strided(x: Tensor) -> tuple[object, ...]:
    (t, h, d), (token, head, channel) = x.shape, x.stride()
    lane = min(8, d // 32)
    steps = x.storage_offset(), token if t > 1 else 0, head if h > 1 else 0
    assert channel == 1 and not any(n % lane for n in steps), "channels must be contiguous and aligned"
    return x, ctypes.c_int64(token), ctypes.c_int64(head)
