"""How many values a second are sealed: check first, then time.

The pool is that of an 8 B model with 36 layers.

python -m benchmarks.seal [formats] [head dims], each separated by commas
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.setup import time_us
from benchmarks.where import where
from octavo.kernels.seal import seal_pages, seal_sources
from octavo.kernels.variants import KERNEL_FORMATS
from tests.kernels.pools import check, compile_all, make_pool, slots

LAYERS, KV_HEADS, PAGES = 36, 8, 16
"""PAGES are sealed at once: a prefill chunk of 1,024 tokens."""


def measure(format: str, head_dim: int, layers: int, pages: int) -> dict[str, object]:
    """Sealed values and moved bytes a second; the pages of one step after the other lie elsewhere."""
    steps = max(2, 64 // pages)
    pool = make_pool(format, head_dim, layers=layers, kv_heads=KV_HEADS, slots=steps * pages)
    order = torch.randperm(steps * pages, device="cuda").view(steps, pages)
    us = time_us([lambda some=some: seal_pages(pool, some, some) for some in order])
    values = 2 * layers * pages * KV_HEADS * 64 * head_dim
    packed = pool.store.packed_bytes * pages
    return {
        "format": format,
        "head_dim": head_dim,
        "layers": layers,
        "pages": pages,
        "us": round(us, 1),
        "values_per_us": round(values / us),
        "bytes_per_us": round((2 * values + packed) / us),
    }


def main() -> None:
    formats = sys.argv[1].split(",") if len(sys.argv) > 1 else list(KERNEL_FORMATS[1:])
    head_dims = [int(d) for d in sys.argv[2].split(",")] if len(sys.argv) > 2 else [128]
    cases = [(f, d) for f in formats for d in head_dims]
    codecs = [c for f, d in cases for (c, *_) in make_pool(f, d, device="cpu").store.codecs.values()]
    sources = [source for codec in codecs for source in seal_sources(codec, torch.bfloat16)]
    compile_all([(source.file, dict(source.defines)) for source in sources])
    results = []
    for format, head_dim in cases:
        pool = make_pool(format, head_dim)
        seal_pages(pool, *slots())
        check(pool)
        for layers, pages in ((LAYERS, PAGES), (LAYERS, 1), (1, 1)):
            found = measure(format, head_dim, layers, pages)
            results.append(found)
            print(" ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    print(json.dumps(where() | {"benchmark": "seal", "kv_heads": KV_HEADS, "results": results}))


if __name__ == "__main__":
    main()
