"""Pools with random plain pages, and what must be in them once the kernels have packed some."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor

from octavo.formats.base import PAGE
from octavo.kernels.compile import compile_kernel
from octavo.kernels.variants import STATE_BITS
from octavo.model.shape import LayerGroup
from octavo.pages.store import GroupPool, Store
from octavo.recipe import Recipe

__all__ = ["MOVES", "NEAR_TIES_TRELLIS", "check", "compile_all", "draw", "make_pool", "sealed", "slots"]

MOVES = ((1, 3), (3, 0), (0, 2))
"""Plain slot to packed slot; slot 1 of the packed ones is nobody's."""

EXACT = ("q8_0", "q6_0", "q5_1", "q5_0", "q4_0", "turbo8")
"""Formats whose factors come from maxima alone: without a mean, no sum is rounded."""

NEAR_TIES = 2e-3
"""Share of bytes that may differ where sums are rounded in another order."""

NEAR_TIES_TRELLIS = 2e-2
"""The same for trellis codes: one value rounded the other way can turn a stretch of a walk."""

DISTORTION = 5e-3
"""Relative difference of the squared error."""


def make_pool(
    pair: str,
    head_dim: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    layers: int = 1,
    kv_heads: int = 2,
    slots: int = 4,
    device: str = "cuda",
    **settings: object,
) -> GroupPool:
    """`slots` plain slots with random tokens of different sizes and a page mean; packed bytes are poison."""
    group = LayerGroup("full", kv_heads, kv_heads, head_dim, None, tuple(range(layers)))
    store = Store(group, Recipe.from_pair(pair, **settings), dtype, layout="tile")
    pool = GroupPool(store, slots, slots, torch.device(device))
    for pages in (pool.k_plain, pool.v_plain):
        pages.copy_(draw(pages.shape, device))
    for sides in pool.packed.values():
        for packed in sides:
            packed.fill_(0xAB)
    return pool


def draw(shape: tuple[int, ...], device: str) -> Tensor:
    """Tokens [..., 64, D]: Gaussian, of different sizes, around a mean that the page's tokens share."""
    *pages, _, head_dim = shape
    size = 0.5 + torch.rand(*pages, PAGE, 1, device=device)
    mean = torch.randn(*pages, 1, head_dim, device=device)
    return torch.randn(shape, device=device) * size + 0.7 * mean


def slots(device: str = "cuda") -> tuple[Tensor, Tensor]:
    """Plain and packed slots of MOVES."""
    plain, packed = zip(*MOVES, strict=True)
    return torch.tensor(plain, device=device), torch.tensor(packed, device=device)


def sealed(pool: GroupPool, side: str) -> tuple[Tensor, Tensor, Tensor]:
    """What was packed, float32 [N, 64, D]; the bytes found, and those the codec makes: [N, nbytes].

    All on the CPU: there the codec divides by numbers, where PyTorch on a GPU multiplies by their inverse.
    """
    plain, packed = slots(str(pool.device))
    pages = pool.k_plain if side == "k" else pool.v_plain
    x = pages[:, plain].flatten(0, 2).cpu()
    found = torch.stack([p[packed] for p in pool.packed[side]]).flatten(0, 2).cpu()
    return x.float(), found, pool.store.codecs[side][0].encode(x)


def check(pool: GroupPool, spoil: float = 1.0) -> None:
    """MOVES were sealed as the codec would; `spoil` multiplies what is read back."""
    for side in ("k", "v"):
        codec = pool.store.codecs[side][0]
        x, found, want = sealed(pool, side)
        differ = float((found != want).float().mean())
        if codec.format.name in EXACT and not codec.centred:
            assert differ == 0.0, (side, differ)
        trellis = codec.format.name in STATE_BITS
        assert differ <= (NEAR_TIES_TRELLIS if trellis else NEAR_TIES), (side, differ)
        errors = [(codec.decode(data) * by - x).square().sum() for data, by in ((found, spoil), (want, 1.0))]
        assert abs(errors[0] - errors[1]) <= DISTORTION * errors[1], (side, errors)
        assert all(bool((p[1] == 0xAB).all()) for p in pool.packed[side]), side


def compile_all(jobs: Sequence[tuple[str, dict[str, int]]]) -> None:
    """Fill the disk cache for the device, a process a core."""
    major, minor = torch.cuda.get_device_capability()
    wanted = {repr(job): job for job in jobs}.values()
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), mp_context=get_context("spawn")) as workers:
        for done in [workers.submit(compile_kernel, *job, f"sm_{major}{minor}") for job in wanted]:
            done.result()
