"""Tries warps and stages of the decode kernel: check first, then time."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[1])]

import torch

from benchmarks.setup import Load, compile_all, plans, provenance, random_pool, read_bandwidth, sdpa_us, time_us
from octavo.kernels.decode import decode
from octavo.kernels.variants import SHARED_LIMIT, choose
from tests.kernels.cases import Shape, measure

A256K = Load("A256k", 8, 4, 128, 262144)


def main() -> None:
    started = time.time()
    lap = lambda what: print(f"[{time.time() - started:.0f}s] {what}", flush=True)
    formats = sys.argv[1].split(",")
    settings = [tuple(map(int, s.split("x"))) for s in sys.argv[2].split(",")]
    loads = {"rows4": A256K, "rows16": replace(A256K, name="rows16", queries=4), "a32k": replace(A256K, length=32768)}
    wanted = sys.argv[3].split(",") if len(sys.argv) > 3 else ["rows4"]
    variants = {}
    for f in formats:
        k, _, v = f.partition(":")
        for name in wanted:
            base = choose(k, v or k, 128, 4 * loads[name].queries, centred=True)
            for w, s in settings:
                x = replace(base, warps=w, stages=s)
                if x.shared_bytes <= SHARED_LIMIT:
                    variants[f, name, w, s] = x
    checks = [Shape(k=f.partition(":")[0], v=f.partition(":")[2] or f, queries=q, lengths=(1, 63, 64, 65, 700, 4095)) for f in formats for q in (1, 4)]
    compile_all(list(variants.values()) + [choose(c.k, c.v, 128, 4 * c.queries, centred=True) for c in checks])
    lap(f"compiled {len(variants)}")
    for c in checks:
        lap(f"check {c.k}:{c.v} queries {c.queries} error {measure(c):.5f}")
    bandwidth = read_bandwidth()
    base, which = sdpa_us(A256K)
    lap(f"read {bandwidth / 1e12:.3f} TB/s, sdpa {base:.1f} us {which}")
    results = []
    for (f, name, w, s), variant in variants.items():
        load = loads[name]
        pool = random_pool(variant.k, variant.v, load, 4096)
        every = plans(load, 4096)
        q = torch.randn(load.queries, 32, 128, device="cuda", dtype=torch.bfloat16)
        moved = (pool.k_packed.numel() + pool.v_packed.numel()) / len(every)
        us = time_us([lambda p=p: decode(q, pool, p, scale=128**-0.5, variant=variant) for p in every * (24 // len(every))])
        results.append({"format": f, "load": name, "warps": w, "stages": s, "us": us})
        lap(f"{f} {name} warps {w} stages {s}: {us:.1f} us, {moved / us * 1e6 / bandwidth:.3f} of read, {base / us:.2f} x sdpa")
        del pool
    out = os.environ.get("OUT")
    if out:
        Path(out, "tune.json").write_text(json.dumps(provenance() | {"results": results}))


if __name__ == "__main__":
    main()
