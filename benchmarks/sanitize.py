"""Small cases of every kernel, for compute-sanitizer: a covering set of variants on tiny shapes.

compute-sanitizer --report-api-errors no --tool memcheck python -m benchmarks.sanitize
compute-sanitizer --tool racecheck python -m benchmarks.sanitize [CASE ...]

Without names all cases run; racecheck is slow where tables lie in shared memory (trellis formats). API errors
are cuda-core's, which asks the driver for functions it may not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from octavo.kernels.append import append_rows, turn_back
from octavo.kernels.blend import blend
from octavo.kernels.seal import seal_pages
from octavo.kernels.unpack import unpack_pages
from tests.kernels.cases import Shape, measure
from tests.kernels.pools import make_pool, slots

ATTENTION = {
    "open": Shape("turbo4", "turbo4", lengths=(1, 400)),
    "sinks": Shape("turbo8", "q4_0", lengths=(200,), queries=4, sinks=True),
    "window": Shape("q5_1", "q5_1", 64, lengths=(200,), window=128),
    "trellis": Shape("turbo3_tcq", "turbo2", lengths=(200,), softcap=20.0),
    "plain": Shape("plain", "turbo3", 256, lengths=(200,), queries=4, dtype=torch.float16),
    "shared": Shape("turbo8", "turbo3_tcq", lengths=(300, 300, 300), shared=3),
    "wide": Shape("turbo4", "turbo4", lengths=(300,) * 9, shared=3, wide=33),
    "wide-full": Shape("turbo8", "q4_0", lengths=(1500,), queries=32, wide=1),
    "wide-trellis": Shape("q5_1", "turbo3_tcq", 64, lengths=(200,), queries=10, wide=1),
}
"""Decode, wide and merge: each way of reading a page, each way of staging it."""

SEALED = ("turbo4", "q5_1", "turbo3_tcq")


def attend(shape: Shape) -> None:
    """The error is printed; sanitizers print their own."""
    print(f"{shape.k}:{shape.v} head_dim {shape.head_dim}: relative error {measure(shape):.4f}", flush=True)


def seal(format: str) -> None:
    """Seal pages, and take them apart."""
    pool = make_pool(format, 128)
    seal_pages(pool, *slots())
    addresses = torch.tensor([3, ~1, 0], dtype=torch.int32, device="cuda")
    for side in ("k", "v"):
        unpack_pages(pool.layer(0), addresses, side)


def rows() -> None:
    """What stores, turns and blends rows."""
    pool = make_pool("turbo4", 128)
    q, k, v = (torch.randn(3, n, 128, device="cuda").bfloat16() for n in (4, 2, 2))
    at = torch.tensor([0, 1, 2], device="cuda")
    append_rows(q, k, v, pool.k_plain[0], pool.v_plain[0], at, at, turn_k=True, turn_v=True, keep=True)
    turn_back(q)
    acc, lse = torch.zeros(4, 3, 128, device="cuda"), torch.full((4, 3), float("-inf"), device="cuda")
    blend(acc, lse, q.transpose(0, 1), torch.randn(4, 3, device="cuda"))


CASES: dict[str, Callable[[], None]] = {
    **{name: lambda shape=shape: attend(shape) for name, shape in ATTENTION.items()},
    **{f"seal-{format}": lambda format=format: seal(format) for format in SEALED},
    "rows": rows,
}


def main() -> None:
    """Run the cases, once each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    for name in parser.parse_args().cases or CASES:
        if name not in CASES:
            parser.error(f"no case {name}; there are {', '.join(CASES)}")
        CASES[name]()
        print(f"{name} ran", flush=True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
