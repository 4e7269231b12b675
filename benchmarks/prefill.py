"""A prefill chunk's attention over packed pages against SDPA on dense 16-bit keys and values; its extra
memory.

    python -m benchmarks.prefill [--past TOKENS] [--pair turbo4] [--out FILE]

8 KV heads, 32 query heads, head_dim 128, chunk 2,048. Checked against the reference on the same bytes, then
timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.shapes import fill
from benchmarks.where import where
from octavo import Recipe
from octavo.attention import prefill
from octavo.formats.base import PAGE
from octavo.model.shape import LayerGroup
from octavo.pages.plan import Segment, make_plan
from octavo.pages.store import GroupPool, Store
from octavo.reference.attention import attend

HEADS, KV_HEADS, D = 32, 8, 128


def time_ms(run: Callable[[], object], rounds: int = 9) -> float:
    run()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def make_pool(pair: str, pages: int) -> GroupPool:
    group = LayerGroup("full", HEADS, KV_HEADS, D, None, (0,))
    pool = GroupPool(
        Store(group, Recipe.from_pair(pair), torch.bfloat16, "tile"), 64, pages, torch.device("cuda")
    )
    fill(pool)
    return pool


def chunk(n: int) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.randn(n, h, D, device="cuda", dtype=torch.bfloat16) for h in (HEADS, KV_HEADS, KV_HEADS)
    )


def segment(past: int, n: int) -> Segment:
    """The first page plain, then packed ones, the open page and the chunk's own plain."""
    complete = past // PAGE
    packed = np.random.default_rng(0).permutation(complete - 1)
    own = ~np.arange(1, 2 + -(-(past % PAGE + n) // PAGE))
    return Segment(0, n, past, 0, np.concatenate([[~0], packed, own]).astype(np.int64))


def check(pair: str) -> float:
    """Relative error against the reference over the same bytes, at an odd length."""
    pool, n, past = make_pool(pair, 80), 200, 64 * 40 + 17
    q, k, v = chunk(n)
    s = segment(past, n)
    positions = past + np.arange(n)
    slots = torch.from_numpy(~s.pages[positions // PAGE]).cuda()
    pool.append(0, slots, torch.from_numpy(positions % PAGE).cuda(), k, v)
    out = prefill.attend_chunk(
        q[None], k, v, pool.layer(0), prefill.plan_past(s, None, pool.device), D**-0.5, None, None
    )
    right = attend(q, pool.layer(0), make_plan([s], None, pool.device), D**-0.5)
    return float((out.float() - right).norm() / right.norm())


def kernels(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, float]:
    """Milliseconds of what PyTorch offers on dense keys and values [1, heads, N, D]."""
    wide_k, wide_v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    found = {}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            for name, run in {
                "gqa": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                "repeated": lambda: F.scaled_dot_product_attention(q, wide_k, wide_v),
            }.items():
                try:
                    found[f"{backend.name} {name}"] = time_ms(run)
                except RuntimeError as error:
                    found[f"{backend.name} {name}: {str(error)[:60]}"] = float("inf")
    tries = {
        "aten flash lse gqa": lambda: torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, False, False
        ),
        "aten cudnn lse gqa": lambda: torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, False, False
        ),
    }
    for name, run in tries.items():
        try:
            out = run()
            found[f"{name} {tuple(out[1].shape)} {out[1].dtype}"] = time_ms(run)
        except RuntimeError as error:
            found[f"{name}: {str(error)[:60]}"] = float("inf")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--past", type=int, default=126 * 1024)
    parser.add_argument("--pair", default="turbo4")
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    past, n = options.past, options.chunk
    error = check(options.pair)
    assert error < 2e-2, f"relative error {error}: nothing is timed"
    dense = [
        torch.randn(1, h, t, D, device="cuda", dtype=torch.bfloat16)
        for h, t in ((HEADS, n), (KV_HEADS, past + n))
    ]
    offered = kernels(dense[0], dense[1], torch.randn_like(dense[1]))
    del dense
    pool = make_pool(options.pair, past // PAGE + 1)
    q, k, v = chunk(n)
    found = prefill.plan_past(segment(past, n), None, pool.device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours = time_ms(lambda: prefill.attend_chunk(q[None], k, v, pool.layer(0), found, D**-0.5, None, None))
    extra = torch.cuda.max_memory_allocated() - before
    unpack = time_ms(
        lambda: [
            prefill.unpack_pages(pool.layer(0), a, s)
            for a in found.addresses.split(prefill.STRETCH)
            for s in "kv"
        ]
    )
    best = min(offered.values())
    result = where() | {
        "command": "python -m benchmarks.prefill", "pair": options.pair, "past": past,
        "chunk": n, "relative_error": error,
        "ms": ours, "unpack_ms": unpack, "extra_bytes": extra, "sdpa_ms": offered,
        "against_sdpa": best / ours,
    }  # fmt: skip
    for key, value in result.items():
        print(key, value)
    if options.out:
        options.out.write_text(json.dumps(result))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
