"""One row times weight matrices at the memory's speed: the Python side of cuda/product.cu."""

from __future__ import annotations

import ctypes
import itertools
from functools import cache

import torch
from torch import Tensor

from octavo.kernels.launch import Kernel, load_kernel, multiprocessors, sorted_defines

__all__ = ["MOST", "product_defines", "row_products", "takes"]

MOST = 4
"""Matrices a launch takes."""

THREADS, UNROLL, CTAS = 512, 4, 2


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel multiplies x [1, K] by weight [N, K]ᵀ."""
    return (
        x.dtype == weight.dtype == torch.bfloat16
        and x.dim() == weight.dim() == 2
        and isinstance(x.shape[0], int)  # while compiling it may be a symbol
        and x.shape[0] == 1
        and x.shape[1] == weight.shape[1]
        and weight.is_contiguous()
        and x.shape[1] % 8 == 0
        and x.shape[1] <= 16384
    )


def row_products(
    x: Tensor, weights: list[Tensor], *, threads: int = THREADS, unroll: int = UNROLL, ctas: int = CTAS
) -> Tensor:
    """x [1, K] times each of up to four weights [N, K]ᵀ, side by side: [1, ΣN], sums in float32.

    bfloat16, contiguous, K a multiple of 8. Launches only.
    """
    x = x.contiguous()
    if x.data_ptr() % 16:  # part of another result
        x = x.clone()
    assert not any(w.data_ptr() % 16 for w in weights), "weights must begin at a multiple of 16 bytes"
    ends = list(itertools.accumulate(len(w) for w in weights))
    ends += [ends[-1]] * (MOST - len(ends))
    out = torch.empty(1, ends[-1], dtype=x.dtype, device=x.device)
    at = [w.data_ptr() for w in weights] + [0] * (MOST - len(weights))
    depth = x.shape[1] // 8
    _kernel(threads, unroll, ctas, shared_bytes(depth, unroll))(
        (multiprocessors() * ctas, 1, 1),
        x, (ctypes.c_int64 * MOST)(*at), (ctypes.c_int * MOST)(*ends), out, depth,
    )  # fmt: skip
    return out


def shared_bytes(depth: int, unroll: int) -> int:
    """Of x, padded to whole stretches of a warp's loads."""
    stretch = 32 * unroll
    return -(-depth // stretch) * stretch * 16


def product_defines(
    threads: int = THREADS, unroll: int = UNROLL, ctas: int = CTAS
) -> tuple[tuple[str, int], ...]:
    """Macros of cuda/product.cu."""
    return sorted_defines({"THREADS": threads, "UNROLL": unroll, "CTAS": ctas, "HALF": 0})


@cache
def _kernel(threads: int, unroll: int, ctas: int, shared: int) -> Kernel:
    defines = product_defines(threads, unroll, ctas)
    kernel = load_kernel("product.cu", "product", defines, threads, shared, early=True)
    return kernel
