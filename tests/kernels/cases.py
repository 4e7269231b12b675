"""Random pools, and attention over them in float64 on the very bytes the kernels read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.formats.base import PAGE
from octavo.formats.codec import PageCodec
from octavo.formats.registry import get_format
from octavo.kernels.decode import DevicePlan, LayerPool, decode
from octavo.kernels.plan import Reader, plan_items

PLAIN_SLOTS = 80
PACKED_SLOTS = 96


@dataclass(frozen=True)
class Shape:
    """What a kernel test varies. `lengths` of the sequences, query included; `queries` tokens of each;
    `young` complete pages before the open one are still plain; `wide` query rows make a wide run; `loud`
    queries are so many times larger, so that maxima keep rising."""

    k: str = "turbo4"
    v: str = "turbo4"
    head_dim: int = 128
    kv_heads: int = 2
    group: int = 4
    lengths: tuple[int, ...] = (4095,)
    queries: int = 1
    young: int = 1
    centred: bool = True
    shared: int = 0
    window: int | None = None
    softcap: float = 0.0
    sinks: bool = False
    dtype: torch.dtype = torch.bfloat16
    wide: int = 0
    loud: float = 1.0
    seed: int = 0


@dataclass
class Made:
    """A pool with its values spelled out: k and v float32 [slots, G, 64, D] of packed and plain slots."""

    pool: LayerPool
    packed: tuple[Tensor, Tensor]
    plain: tuple[Tensor, Tensor]


def make_pool(shape: Shape, device: str) -> Made:
    generator = torch.Generator(device).manual_seed(shape.seed)

    def draw(slots: int, bias: float) -> Tensor:
        size = (slots, shape.kv_heads, PAGE, shape.head_dim)
        x = torch.randn(size, generator=generator, device=device)
        return x + bias * torch.randn(
            slots, shape.kv_heads, 1, shape.head_dim, generator=generator, device=device
        )

    sides, values = [], []
    for side, name in (("k", shape.k), ("v", shape.v)):
        centred = shape.centred and side == "k" and name != "plain"
        codec = PageCodec(
            get_format(name),
            shape.head_dim,
            side,
            layout="tile",
            gain="norm",
            centred=centred,
            dtype=shape.dtype,
        )
        data = codec.encode(draw(PACKED_SLOTS, 0.5 * centred).flatten(0, 1))
        sides.append(data.view(PACKED_SLOTS, shape.kv_heads, -1))
        values.append(codec.decode(data).view(PACKED_SLOTS, shape.kv_heads, PAGE, shape.head_dim))
    plain = [draw(PLAIN_SLOTS, 0.0).to(shape.dtype) for _ in range(2)]
    pool = LayerPool(shape.k, shape.v, *sides, *plain, centred=shape.centred and shape.k != "plain")
    return Made(pool, (values[0], values[1]), (plain[0].float(), plain[1].float()))


def make_readers(shape: Shape, rng: np.random.Generator) -> tuple[list[Reader], np.ndarray]:
    """First, young and open pages plain, the others packed, in random slots; positions of queries."""
    readers, positions, plain = [], [], iter(range(PLAIN_SLOTS))
    common = rng.permutation(PACKED_SLOTS)[: shape.shared].astype(np.int32)
    for i, length in enumerate(shape.lengths):
        count = -(-length // PAGE)
        pages = rng.permutation(PACKED_SLOTS)[:count].astype(np.int32)
        pages[: min(len(common), count)] = common[:count]
        young = set(range(max(count - 1 - shape.young, shape.shared), count - 1))
        first = set() if shape.shared else {0}
        for p in sorted(first | young | {count - 1}):
            pages[p] = ~next(plain)
        first = 0
        if shape.window is not None:
            first = max(0, length - shape.queries + 1 - shape.window) // PAGE
        readers.append(Reader(pages[first:], range(i * shape.queries, (i + 1) * shape.queries), first * PAGE))
        positions += list(range(length - shape.queries, length))
    return readers, np.array(positions)


def reference(
    shape: Shape,
    made: Made,
    readers: list[Reader],
    positions: np.ndarray,
    q: Tensor,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    """[T, H, D] float64."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for reader in readers:
        take = torch.from_numpy(reader.pages.astype(np.int64)).to(q.device)
        sides = []
        for packed, plain in zip(made.packed, made.plain, strict=True):
            x = torch.where(
                (take >= 0)[:, None, None, None], packed[take.clamp_min(0)], plain[(~take).clamp_min(0)]
            )
            sides.append(x.transpose(0, 1).flatten(1, 2).double())  # [G, N, D]
        for token in reader.tokens:
            at = reader.first + torch.arange(sides[0].shape[1], device=q.device)
            seen = at <= int(positions[token])
            if shape.window is not None:
                seen &= at > int(positions[token]) - shape.window
            rows = q[token].double().view(shape.kv_heads, shape.group, -1)
            scores = rows @ sides[0][:, seen].transpose(1, 2) * scale
            if shape.softcap:
                scores = shape.softcap * torch.tanh(scores / shape.softcap)
            if sinks is not None:
                scores = torch.cat((scores, sinks.double().view(shape.kv_heads, shape.group, 1)), -1)
            p = scores.softmax(-1)[..., : int(seen.sum())]
            out[token] = (p @ sides[1][:, seen]).flatten(0, 1)
    return out


def measure(shape: Shape, device: str = "cuda", *, spoil: float = 1.0) -> float:
    """Relative error of the kernels on `shape`; `spoil` multiplies the softmax scale of the kernel alone."""
    made = make_pool(shape, device)
    rng = np.random.default_rng(shape.seed)
    readers, positions = make_readers(shape, rng)
    poison(made, readers, positions)
    tokens, heads = len(positions), shape.kv_heads * shape.group
    generator = torch.Generator(device).manual_seed(shape.seed + 1)
    q = torch.randn(tokens, heads, shape.head_dim, generator=generator, device=device) * shape.loud
    q = q.to(shape.dtype)
    scale, sinks = shape.head_dim**-0.5, torch.randn(heads, device=device) if shape.sinks else None
    plan = DevicePlan.holding(
        plan_items(readers, positions, shape.group, shape.window, wide=shape.wide), device
    )
    for _ in range(2):  # a launch must leave its counters as the next, perhaps a replayed graph, needs them
        out = torch.full_like(q, float("nan"))
        decode(q, made.pool, plan, scale=scale * spoil, softcap=shape.softcap, sinks=sinks, out=out)
    right = reference(shape, made, readers, positions, q, scale, sinks)
    return float((out.double() - right).norm() / right.norm())


def poison(made: Made, readers: list[Reader], positions: np.ndarray) -> None:
    """Everything nobody may read becomes NaN: free slots, and the open pages behind the last query."""
    used = np.concatenate([r.pages for r in readers])
    for data, slots in ((made.pool.k_packed, used[used >= 0]), (made.pool.v_packed, used[used >= 0])):
        free = np.setdiff1d(np.arange(len(data)), slots)
        data[torch.from_numpy(free).to(data.device)] = 255
    for plain, spelled in zip((made.pool.k_plain, made.pool.v_plain), made.plain, strict=True):
        free = np.setdiff1d(np.arange(len(plain)), ~used[used < 0])
        plain[torch.from_numpy(free).to(plain.device)] = float("nan")
        for reader in readers:
            live = int(positions[reader.tokens.stop - 1]) + 1 - reader.first
            slot, filled = int(~reader.pages[-1]), live - PAGE * (len(reader.pages) - 1)
            plain[slot, :, filled:] = float("nan")
            spelled[slot, :, filled:] = 0.0
