"""Pools of random bytes, clocks and yardsticks for the GPU benchmarks."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from octavo.formats.base import PAGE
from octavo.formats.codec import PageCodec
from octavo.formats.registry import get_format
from octavo.kernels.compile import compile_kernel
from octavo.kernels.decode import DevicePlan, LayerPool
from octavo.kernels.launch import load_kernel
from octavo.kernels.plan import Reader, plan_items
from octavo.kernels.variants import Variant
from octavo.kernels.wide import WideVariant

PLAIN_SLOTS = 256
"""More than the cache holds."""

ROUNDS = 9
"""Replays of which the median counts."""


@dataclass(frozen=True)
class Load:
    """`batch` sequences of `length` tokens, each read by `agents`, each with `queries` new tokens; what
    `wide` query rows share is a wide run. With `ends` the first page and the last are plain, as the engine
    keeps them."""

    name: str
    kv_heads: int
    group: int
    head_dim: int
    length: int
    batch: int = 1
    queries: int = 1
    agents: int = 1
    wide: int = 0
    ends: bool = False

    @property
    def pages(self) -> int:
        return self.batch * self.length // PAGE


def random_pool(k: str, v: str, load: Load, slots: int, device: str = "cuda") -> LayerPool:
    """Packed pages of random codes with gains near 1/sqrt(D): every byte is different, every value finite."""
    sides = []
    for side, name in (("k", k), ("v", v)):
        codec = PageCodec(
            get_format(name), load.head_dim, side, layout="tile", centred=side == "k", dtype=torch.bfloat16
        )
        data = torch.randint(0, 256, (slots, load.kv_heads, codec.nbytes), dtype=torch.uint8, device=device)
        for section, (start, stop) in codec.sections().items():
            if section in ("gains", "mins", "mean_gain"):
                size = (slots, load.kv_heads, (stop - start) // 2)
                gains = (0.01 + 0.01 * torch.rand(size, device=device)).half()
                data[..., start:stop] = gains.view(torch.uint8)
        sides.append(data)
    size = (PLAIN_SLOTS, load.kv_heads, PAGE, load.head_dim)
    plain = torch.randn(size, device=device, dtype=torch.bfloat16)
    return LayerPool(k, v, *sides, plain, plain, centred=True)


def plans(load: Load, slots: int, device: str = "cuda") -> list[DevicePlan]:
    """Plans over different slots of the pool, shuffled, as many as fit: the cache must not help."""
    rng = np.random.default_rng(0)
    order = rng.permutation(slots).astype(np.int32)
    each, made, plain = load.length // PAGE, [], cycle(range(PLAIN_SLOTS))
    for start in range(0, slots - load.pages + 1, load.pages):
        readers = []
        for i in range(load.batch * load.agents):
            pages = order[start + i // load.agents * each :][:each].copy()
            if load.ends:
                pages[[0, -1]] = ~next(plain), ~next(plain)
            readers.append(Reader(pages, range(i * load.queries, (i + 1) * load.queries)))
        positions = np.full(len(readers) * load.queries, load.length - 1)
        made.append(DevicePlan.holding(plan_items(readers, positions, load.group, wide=load.wide), device))
    return made


def time_us(steps: Sequence[Callable[[], object]]) -> float:
    """Median microseconds of a step, run one after another in a replayed graph."""
    for step in steps[:2]:
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    graph.replay()
    times = []
    for _ in range(ROUNDS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / len(steps))
    return float(np.median(times))


def read_bandwidth(device: str = "cuda") -> float:
    """Bytes a second of a kernel that only reads, over 8 GB."""
    data = torch.randint(0, 255, (1 << 33,), dtype=torch.uint8, device=device)
    out = torch.zeros(1, dtype=torch.int32, device=device)
    kernel = load_kernel("read.cu", "read", (("HALF", 0),), 1024, 0)
    best = min(
        time_us([lambda n=n: kernel((n, 1, 1), data, ctypes.c_int64(data.numel() // 16), out)])
        for n in (264, 528, 2048, 8192)
    )
    return data.numel() / best * 1e6


def sdpa_us(load: Load, device: str = "cuda") -> tuple[float, str]:
    """The fastest of PyTorch's bf16 attentions over dense keys and values, and its name."""
    copies = max(1, min(8, (1 << 30) // (2 * load.pages * PAGE * load.kv_heads * load.head_dim * 2)))
    heads = load.kv_heads * load.group
    q = torch.randn(load.batch, heads, load.queries, load.head_dim, device=device, dtype=torch.bfloat16)
    size = (load.batch, load.kv_heads, load.length, load.head_dim)
    pairs = [
        [torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(2)] for _ in range(copies)
    ]
    best = (float("inf"), "none")
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):

        def step(k: Tensor, v: Tensor, backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel([backend]):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        try:
            found = time_us([lambda k=k, v=v: step(k, v) for k, v in pairs for _ in range(1)] * 2)
        except RuntimeError as error:
            print(f"  {backend.name}: {str(error).splitlines()[0]}")
            continue
        best = min(best, (found, backend.name))
    return best


def compile_all(variants: Sequence[Variant | WideVariant]) -> None:
    """Fill the disk cache, a process a core."""
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    jobs = [
        ("wide.cu", v.defines(), f"{arch}a")
        if isinstance(v, WideVariant)
        else ("decode.cu", v.defines(), arch)
        for v in dict.fromkeys(variants)
    ]
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), mp_context=get_context("spawn")) as workers:
        for done in [workers.submit(compile_kernel, *job) for job in jobs]:
            done.result()
