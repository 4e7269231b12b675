"""How fast pages become dense values, beside a plain copy on the device: check first, then time.

python -m benchmarks.unpack [formats] [head dims], each separated by commas
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.setup import time_us
from benchmarks.where import where
from octavo.formats.base import PAGE, Side
from octavo.kernels.unpack import side_defines, unpack_pages
from octavo.kernels.variants import KERNEL_FORMATS
from octavo.pages.store import GroupPool
from tests.kernels.pools import compile_all, make_pool

KV_HEADS, PAGES, STEPS = 8, 256, 8
"""A stretch of prefill (octavo.attention.prefill); STEPS of them lie in different memory."""


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy of 2 GB."""
    data = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device="cuda")
    other = torch.empty_like(data)
    return 2e6 * data.numel() / time_us([lambda: other.copy_(data)] * 4)


def fill(pool: GroupPool) -> None:
    """Pages of random codes with small gains: every byte is different, every value finite."""
    for side, (codec, *_) in pool.store.codecs.items():
        for packed in pool.packed[side]:
            packed.random_(0, 256)
            for section, (start, stop) in codec.sections().items():
                if section in ("gains", "mins", "mean_gain"):
                    size = (*packed.shape[:2], (stop - start) // 2)
                    gains = (0.01 + 0.01 * torch.rand(size, device="cuda")).half()
                    packed[..., start:stop] = gains.view(torch.uint8)


def measure(format: str, head_dim: int, side: Side) -> tuple[float, int]:
    """Microseconds of a stretch, and the bytes it moves."""
    pool = make_pool(format, head_dim, kv_heads=KV_HEADS, slots=STEPS * PAGES)
    fill(pool)
    pages, codec = pool.layer(0), pool.store.codecs[side][0]
    order = torch.randperm(STEPS * PAGES, device="cuda").int().view(STEPS, PAGES)
    outs = [unpack_pages(pages, some, side) for some in order]
    want = codec.decode(pool.packed[side][0][order[0]].flatten(0, 1), torch.bfloat16)
    want = want.view(PAGES, KV_HEADS, PAGE, head_dim).transpose(0, 1).flatten(1, 2)
    assert torch.equal(outs[0], want), f"{format} {side}: unpacked values differ from the codec's"
    us = time_us(
        [lambda a=a, out=out: unpack_pages(pages, a, side, out) for a, out in zip(order, outs, strict=True)]
    )
    return us, PAGES * KV_HEADS * (codec.nbytes + 2 * PAGE * head_dim)


def main() -> None:
    formats = sys.argv[1].split(",") if len(sys.argv) > 1 else list(KERNEL_FORMATS[1:])
    head_dims = [int(d) for d in sys.argv[2].split(",")] if len(sys.argv) > 2 else [128]
    cases = [(f, d) for f in formats for d in head_dims]
    codecs = [c for f, d in cases for (c, *_) in make_pool(f, d, device="cpu").store.codecs.values()]
    compile_all([("unpack.cu", side_defines(codec, torch.bfloat16)) for codec in codecs])
    bandwidth = copy_bandwidth()
    print(f"copy {bandwidth / 1e12:.2f} TB/s")
    results = []
    for format, head_dim in cases:
        for side in ("k", "v"):
            us, moved = measure(format, head_dim, side)
            share = moved / us * 1e6 / bandwidth
            results.append({"format": format, "head_dim": head_dim, "side": side, "us": us, "of_copy": share})
            print(
                f"{format} {head_dim} {side}: {us:.1f} us, {share:.2f} of a copy's bytes a second", flush=True
            )
    settings = {"benchmark": "unpack", "kv_heads": KV_HEADS, "pages": PAGES, "copy_bytes_per_s": bandwidth}
    print(json.dumps(where() | settings | {"results": results}))


if __name__ == "__main__":
    main()
