"""A few launches of one decode variant, for a profiler to look at: K V LOAD [warps stages]."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from benchmarks.setup import Load, plans, random_pool
from octavo.kernels.decode import decode
from octavo.kernels.variants import choose

if __name__ == "__main__":
    k, v, queries, warps, stages = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
        int(sys.argv[5]),
    )
    load = Load("A256k", 8, 4, 128, 262144, queries=queries)
    pool, plan = random_pool(k, v, load, 4096), plans(load, 4096)[0]
    variant = replace(choose(k, v, 128, 4 * queries, centred=True), warps=warps, stages=stages)
    q = torch.randn(queries, 32, 128, device="cuda", dtype=torch.bfloat16)
    for _ in range(4):
        decode(q, pool, plan, scale=128**-0.5, variant=variant)
    torch.cuda.synchronize()
