"""Small cases of every kernel, for compute-sanitizer: a covering set of variants on tiny shapes.

compute-sanitizer --tool memcheck python -m benchmarks.sanitize
compute-sanitizer --tool racecheck python -m benchmarks.sanitize
"""

from __future__ import annotations

import torch

from octavo.kernels.append import append_rows, turn_back
from octavo.kernels.blend import blend
from octavo.kernels.seal import seal_pages
from octavo.kernels.unpack import unpack_pages
from tests.kernels.cases import Shape, measure
from tests.kernels.pools import make_pool, slots

ATTENTION = (
    Shape("turbo4", "turbo4", lengths=(1, 400)),
    Shape("turbo8", "q4_0", lengths=(200,), queries=4, sinks=True),
    Shape("q5_1", "q5_1", 64, lengths=(200,), window=128),
    Shape("turbo3_tcq", "turbo2", lengths=(200,), softcap=20.0),
    Shape("plain", "turbo3", 256, lengths=(200,), queries=4, dtype=torch.float16),
    Shape("turbo8", "turbo3_tcq", lengths=(300, 300, 300), shared=3),
    Shape("turbo4", "turbo4", lengths=(300,) * 9, shared=3, wide=33),
    Shape("q5_1", "turbo3_tcq", 64, lengths=(200,), queries=10, wide=1),
)
"""Decode, wide and merge: each way of reading a page, each way of staging it."""

SEALED = ("turbo4", "q5_1", "turbo3_tcq")


def main() -> None:
    """Run everything once; errors of attention are printed, sanitizers print their own."""
    for shape in ATTENTION:
        print(
            f"{shape.k}:{shape.v} head_dim {shape.head_dim}: relative error {measure(shape):.4f}", flush=True
        )
    for format in SEALED:
        pool = make_pool(format, 128)
        seal_pages(pool, *slots())
        addresses = torch.tensor([3, ~1, 0], dtype=torch.int32, device="cuda")
        for side in ("k", "v"):
            unpack_pages(pool.layer(0), addresses, side)
    q, k, v = (torch.randn(3, n, 128, device="cuda").bfloat16() for n in (4, 2, 2))
    at = torch.tensor([0, 1, 2], device="cuda")
    append_rows(q, k, v, pool.k_plain[0], pool.v_plain[0], at, at, turn_k=True, turn_v=True, keep=True)
    turn_back(q)
    acc, lse = torch.zeros(4, 3, 128, device="cuda"), torch.full((4, 3), float("-inf"), device="cuda")
    blend(acc, lse, q.transpose(0, 1), torch.randn(4, 3, device="cuda"))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
