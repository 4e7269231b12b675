"""Decode attention of the GPU kernels against PyTorch's bf16 attention: check first, then time.

python -m benchmarks.kernels [--json FILE] [--quick]      prints tables, then one JSON line
--tune tries other warps and stages too and reports the best
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.setup import (
    Load,
    compile_all,
    plans,
    random_pool,
    read_bandwidth,
    sdpa_us,
    time_us,
)
from benchmarks.where import where
from octavo.errors import OctavoError
from octavo.kernels.decode import DevicePlan, decode
from octavo.kernels.plan import TILE
from octavo.kernels.variants import SHARED_LIMIT, Variant, choose
from octavo.kernels.wide import WideVariant, choose_wide
from tests.kernels.cases import Shape, measure

A256K = Load("A256k", 8, 4, 128, 262144)
A32K = Load("A32k", 8, 4, 128, 32768)
SIXTEEN_ROWS = replace(A256K, name="A256k 16 rows", queries=4)
FORMATS = (
    "turbo8", "turbo4", "turbo3", "turbo2", "q8_0", "q6_0", "q5_1", "q5_0", "q4_0",
    "turbo4_tcq", "turbo3_tcq", "turbo2_tcq",
    "turbo8:turbo4", "turbo8:turbo3", "q8_0:q4_0", "turbo8:turbo3_tcq",
)  # fmt: skip
FOUR_BITS = (
    A32K,
    Load("A128k", 8, 4, 128, 131072),
    replace(A32K, name="A32k, ends plain", ends=True),
    Load("A128k, ends plain", 8, 4, 128, 131072, ends=True),
    Load("B 8 x 32k", 8, 4, 128, 32768, batch=8),
    Load("C 128k D256", 2, 8, 256, 131072),
    Load("D256 8 x 32k", 4, 4, 256, 32768, batch=8),
    Load("D64 8 x 32k", 8, 4, 64, 32768, batch=8),
    SIXTEEN_ROWS,
    *(replace(A32K, name=f"A32k {n} agents", agents=n) for n in (8, 16, 32)),
    *(replace(A32K, name=f"A32k {n} agents, wide", agents=n, wide=1) for n in (8, 16, 32)),
)
"""What 4-bit pages are timed on besides A256k."""

TOLERANCE = 1.5e-2
"""Relative error on Gaussian data that int8 arithmetic may have."""


@dataclass(frozen=True)
class Case:
    pair: str
    load: Load

    @property
    def k(self) -> str:
        return self.pair.partition(":")[0]

    @property
    def v(self) -> str:
        return self.pair.partition(":")[2] or self.k

    @property
    def rows(self) -> int:
        return min(TILE, self.load.group * self.load.queries * self.load.agents)


def check(cases: list[Case]) -> float:
    """The largest relative error over the cases' formats and head dims; raises where one is too large."""
    worst = 0.0
    for case in cases:
        shape = Shape(
            case.k,
            case.v,
            case.load.head_dim,
            group=case.load.group,
            lengths=(65, 700, 4095),
            queries=case.load.queries,
            wide=case.load.wide,
        )
        error = measure(shape)
        worst = max(worst, error)
        if not error < TOLERANCE:
            raise OctavoError(
                f"{case.pair}, head_dim {case.load.head_dim}: relative error {error:.4f} > {TOLERANCE}"
            )
    return worst


SETTINGS = ((12, 1), (12, 2), (8, 2), (8, 1), (16, 1))
"""Warps and stages that --tune tries."""


def candidates(case: Case, tune: bool) -> list[Variant]:
    """The variant that decode chooses, first; with `tune` the others that fit."""
    chosen = choose(case.k, case.v, case.load.head_dim, case.rows, centred=True)
    others = [replace(chosen, warps=w, stages=s) for w, s in SETTINGS] if tune else []
    return [chosen, *(v for v in others if v.shared_bytes <= SHARED_LIMIT and v != chosen)]


def wide_variant(case: Case) -> WideVariant:
    """The variant that decode chooses for wide runs."""
    return choose_wide(case.k, case.v, case.load.head_dim, shared_limit=SHARED_LIMIT, centred=True)


def run(case: Case, bandwidth: float, base_us: float, tune: bool) -> dict[str, object]:
    """Time one case; `base_us` is the bf16 attention of the same load."""
    load = case.load
    slots = max(load.pages, (1 << 29) // (load.kv_heads * 64 * load.head_dim * 2))
    slots -= slots % load.pages
    pool = random_pool(case.k, case.v, load, slots)
    every = plans(load, slots)
    tokens, heads = load.batch * load.agents * load.queries, load.kv_heads * load.group
    q = torch.randn(tokens, heads, load.head_dim, device="cuda").bfloat16()

    def time_variant(variant: Variant) -> float:
        def step(plan: DevicePlan) -> object:
            return decode(q, pool, plan, scale=load.head_dim**-0.5, variant=variant)

        return time_us([lambda p=p: step(p) for p in every * max(1, 16 // len(every))])

    times = {(v.warps, v.stages): time_variant(v) for v in candidates(case, tune)}
    us, setting = min((us, setting) for setting, us in times.items())
    moved = load.pages * load.kv_heads * (pool.k_packed.shape[-1] + pool.v_packed.shape[-1])
    return {
        "pair": case.pair, "load": load.name, "us": round(us, 1), "setting": "x".join(map(str, setting)),
        "read_share": round(moved / us * 1e6 / bandwidth, 3), "bytes": moved,
        "speedup": round(base_us / us, 2) if base_us else None,
        "tried": {"x".join(map(str, s)): round(t, 1) for s, t in times.items()},
    }  # fmt: skip


def main(argv: list[str] | None = None, *, quick: bool = False, file: str | None = None) -> dict[str, object]:
    """Check and time everything; returns what the last line prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", dest="file", default=file)
    parser.add_argument("--quick", action="store_true", default=quick)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args([] if argv is None else argv)
    cases = [Case(pair, A256K) for pair in (FORMATS[:4] if options.quick else FORMATS)]
    cases += [
        Case(pair, load)
        for load in FOUR_BITS
        for pair in (("turbo4",) if options.quick else ("turbo4", "q4_0"))
    ]
    cases += [Case(pair, SIXTEEN_ROWS) for pair in ("turbo8", "turbo3", "turbo2")]
    compile_all([v for c in cases for v in candidates(c, options.tune)])
    compile_all([wide_variant(c) for c in cases if c.load.wide])
    print(f"checked: largest relative error {check(cases):.5f}", flush=True)
    bandwidth = read_bandwidth()
    print(f"read bandwidth {bandwidth / 1e12:.2f} TB/s")
    bases: dict[str, float] = {}
    rows = []
    for case in cases:
        load = case.load
        if load.name not in bases:
            bases[load.name], which = sdpa_us(load) if load.agents == 1 else (0.0, "none")
            print(f"{load.name}: bf16 attention {bases[load.name]:.1f} us ({which})", flush=True)
        rows.append(run(case, bandwidth, bases[load.name], options.tune))
        print(
            "  {pair:18} {us:8.1f} us  {read_share:.2f} of read  {speedup} x  {tried}".format(**rows[-1]),
            flush=True,
        )
    result = where() | {"read_tb_s": round(bandwidth / 1e12, 3), "bf16_us": bases, "rows": rows}
    if options.file:
        Path(options.file).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
