"""When each warp of a decode launch does what: K,V,QUERIES,WARPS,STAGES,LENGTH ..."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch
from cuda.bindings import driver

from benchmarks.setup import Load, plans, random_pool
from octavo.kernels.decode import _kernels, decode
from octavo.kernels.variants import Variant, choose

PHASES = {0: "entry", 1: "query staged", 2: "loop", 4: "loop end", 5: "stored"}
WARPS, MARKS = 16, 8


class Traced(Variant):
    """A variant whose warps note the time."""

    def defines(self) -> dict[str, int]:
        return super().defines() | {"TRACE": 1}


def trace(case: str) -> None:
    """Print when the phases of the last of four launches were reached, in microseconds."""
    k, v, *numbers = case.split(",")
    queries, warps, stages, length = map(int, numbers)
    load = Load(case, 8, 4, 128, length, queries=queries)
    pool, plan = random_pool(k, v, load, 4096), plans(load, 4096)[0]
    chosen = replace(choose(k, v, 128, 4 * queries, centred=True), warps=warps, stages=stages)
    variant = Traced(**vars(chosen))
    q = torch.randn(queries, 32, 128, device="cuda", dtype=torch.bfloat16)
    for _ in range(4):
        decode(q, pool, plan, scale=128**-0.5, variant=variant)
    torch.cuda.synchronize()
    _, address, _ = driver.cuModuleGetGlobal(_kernels(variant)[0].module, b"trace_at")
    host = np.zeros((132, WARPS, MARKS), np.uint64)
    driver.cuMemcpyDtoH(host.ctypes.data, address, host.nbytes)
    times = (host[:, :warps].astype(np.int64) - host[:, :warps, 0].min().astype(np.int64)) / 1e3
    print(case)
    for mark, name in PHASES.items():
        spread = np.percentile(times[..., mark], (0, 10, 50, 90, 100))
        print(f"  {name:13}" + "".join(f"{x:8.1f}" for x in spread))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        trace(argument)
