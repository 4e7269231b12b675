"""Parts of a softmax merged in place: the Python side of cuda/blend.cu."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from octavo.kernels.launch import VECTOR_THREADS, load_kernel, vector_defines, vector_grid

__all__ = ["blend", "blend_defines"]


def blend(acc: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """acc [H, n, D] and lse [H, n], float32 and contiguous, take in `part` [H, n, D] (16 bits) with its
    `part_lse`.

    acc = Σ outᵢ · exp(lseᵢ − lse), lse = log Σ exp(lseᵢ). lse may be −inf where nothing was seen yet.
    """
    h, n, d = part.shape
    kernel = load_kernel(
        "blend.cu", "blend", blend_defines(d, part.dtype == torch.float16), VECTOR_THREADS, 0
    )
    strides = ctypes.c_int64(part.stride(1)), ctypes.c_int64(part.stride(0))
    kernel(vector_grid(h * n), acc, lse, part, *strides, part_lse.contiguous(), n, h)


def blend_defines(head_dim: int, half: bool) -> tuple[tuple[str, int], ...]:
    """Macros of cuda/blend.cu."""
    return vector_defines(head_dim, half)
