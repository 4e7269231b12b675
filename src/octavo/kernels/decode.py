"""Decode attention over pages on the GPU: the Python side of cuda/decode.cu and cuda/merge.cu."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from octavo.errors import InvalidRequest
from octavo.formats.trellis import load_table
from octavo.kernels.launch import Kernel, load_kernel, multiprocessors, shared_limit, sorted_defines
from octavo.kernels.plan import TILE, WIDE_TILE, Plan
from octavo.kernels.variants import STATE_BITS, Variant, choose
from octavo.kernels.wide import WideVariant, choose_wide

__all__ = ["DevicePlan", "LayerPool", "decode", "merge_defines"]

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class LayerPool:
    """The pages of one layer.

    k, v          formats; "plain" where a side is kept in the model's dtype
    k_packed, v_packed  uint8 [packed_slots, G, bytes] in tile layout
    k_plain, v_plain    [plain_slots, G, 64, D], bf16 or f16
    centred       keys of packed pages have their mean apart
    """

    k: str
    v: str
    k_packed: Tensor
    v_packed: Tensor
    k_plain: Tensor
    v_plain: Tensor
    centred: bool


class DevicePlan:
    """A plan on the device, at addresses that stay: a captured graph reads the next step's from them.

    Holds up to `max_runs` runs, `max_wide` wide ones, `max_pages` addresses and `max_tokens` query tokens;
    `load` fills it.
    """

    def __init__(
        self,
        *,
        max_runs: int,
        max_pages: int,
        max_tokens: int,
        group: int,
        max_wide: int = 0,
        device: torch.device | str = "cuda",
    ):
        rows, wide = max_runs * TILE, max_wide * WIDE_TILE
        narrow = (max_pages, 4 * max_runs, rows, 2 * max_tokens, max_tokens * group + 1, rows + wide)
        sizes = (*narrow, 4 * max_wide, wide)
        self.sizes = [-(-size // 4) * 4 for size in sizes]
        starts = np.cumsum([4, *self.sizes])
        self.host = torch.zeros(int(starts[-1]), dtype=torch.int32, pin_memory=torch.cuda.is_available())
        self.data = torch.zeros_like(self.host, device=device)
        self.starts = [int(s) for s in starts[:-1]]
        self.max_runs, self.max_wide, self.max_tokens, self.group = max_runs, max_wide, max_tokens, group
        self.header = self.data[:4]
        self.outputs = self.most_rows = 0
        names = ("addresses", "runs", "rows", "sees", "offsets", "links", "wide_runs", "wide_rows")
        self.views = {n: self.data[s : s + z] for n, s, z in zip(names, self.starts, self.sizes, strict=True)}

    @classmethod
    def holding(cls, plan: Plan, device: torch.device | str = "cuda") -> DevicePlan:
        """One that fits `plan`, filled with it."""
        made = cls(
            max_runs=max(1, len(plan.runs)),
            max_pages=max(1, len(plan.addresses)),
            max_tokens=len(plan.sees),
            max_wide=len(plan.wide_runs),
            group=plan.group,
            device=device,
        )
        made.load(plan)
        return made

    def fits(self, plan: Plan) -> bool:
        """Whether there is room for `plan`."""
        return all(array.size <= size for size, array in zip(self.sizes, plan.arrays, strict=True))

    def load(self, plan: Plan) -> None:
        """Copy `plan` over, in one transfer on the current stream."""
        used = 4
        self.host[:4] = torch.tensor(plan.header)
        for start, size, array in zip(self.starts, self.sizes, plan.arrays, strict=True):
            if array.size > size:
                raise InvalidRequest(
                    f"the plan has {array.size} entries where {size} fit; make DevicePlan larger"
                )
            self.host[start : start + array.size] = torch.from_numpy(array.reshape(-1))
            used = start + array.size
        self.data[:used].copy_(self.host[:used], non_blocking=True)
        self.outputs, self.most_rows = plan.outputs, plan.most_rows


def decode(
    q: Tensor,
    pool: LayerPool,
    plan: DevicePlan,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    variant: Variant | None = None,
    rows: int | None = None,
) -> Tensor:
    """Attention of q [T, H, D] over the pages of `plan`: [outputs, H, D] in q's dtype (T without bands).

    q and the plain pages are bf16 or f16, rotated and equalised alike; sinks float32 [H]. `rows` is how many
    of a run the kernel must hold, where a captured graph must serve plans with more than this one.
    Launches only; nothing waits for the device. Raises KernelsUnavailable, UnsupportedModel.
    """
    _, heads, head_dim = q.shape
    kv_heads, limit = heads // plan.group, shared_limit()
    settings = {
        "centred": pool.centred and pool.k != "plain",
        "softcap": softcap > 0,
        "half": q.dtype == torch.float16,
        "shared_limit": limit,
    }
    if variant is None:
        variant = choose(pool.k, pool.v, head_dim, rows or plan.most_rows, **settings)
    ctas, view = multiprocessors(), plan.views

    def walk(kernel: Kernel, runs: Tensor, rows: Tensor, header: Tensor, parts: Parts) -> None:
        kernel(
            (ctas, 1, 1),
            q, pool.k_packed, pool.v_packed, pool.k_plain, pool.v_plain,
            view["addresses"], runs, rows, header, view["sees"],
            table_of(pool.k, q.device), table_of(pool.v, q.device), *parts,
            ctypes.c_int64(q.stride(0)), ctypes.c_int64(q.stride(1)), kv_heads, plan.group,
            float(scale * LOG2_E), float(softcap * LOG2_E),
        )  # fmt: skip

    slots = plan.max_runs * kv_heads * (head_dim // variant.slice) + ctas
    parts = make_parts(slots * variant.rows, variant.slice, q.device)
    walk(decode_kernel(variant), view["runs"], view["rows"], plan.header[:2], parts)
    wide_parts: Parts | tuple[None, None] = (None, None)
    if plan.max_wide:
        wide_slots = plan.max_wide * kv_heads + ctas
        wide_parts = make_parts(wide_slots * WIDE_TILE, head_dim, q.device, torch.float16)
        kernel = wide_kernel(choose_wide(pool.k, pool.v, head_dim, **settings))
        walk(kernel, view["wide_runs"], view["wide_rows"], plan.header[2:], wide_parts)
    merge = merge_kernel(variant, plan.max_wide > 0)
    out = q.new_empty(plan.outputs, heads, head_dim) if out is None else out
    merge(
        (plan.outputs, heads, head_dim // variant.slice),
        *parts, view["runs"], *wide_parts, view["wide_runs"], plan.header,
        view["offsets"], view["links"], sinks, out,
        ctypes.c_int64(out.stride(0)), ctypes.c_int64(out.stride(1)), kv_heads, plan.group, ctas,
    )  # fmt: skip
    return out


Parts = tuple[Tensor, Tensor]
"""Of every row of every part: sums of values (of wide runs their means, float16); maximum and denominator."""


def make_parts(rows: int, channels: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Parts:
    """Room for parts of so many rows in all."""
    sums = torch.empty(rows * channels, dtype=dtype, device=device)
    return sums, torch.empty(rows * 2, dtype=torch.float32, device=device)


@cache
def decode_kernel(variant: Variant) -> Kernel:
    """decode.cu, compiled."""
    defines = sorted_defines(variant.defines())
    return load_kernel("decode.cu", "decode", defines, 32 * variant.warps, variant.shared_bytes, early=True)


@cache
def wide_kernel(variant: WideVariant) -> Kernel:
    """wide.cu, compiled."""
    defines = sorted_defines(variant.defines())
    return load_kernel(
        "wide.cu", "wide", defines, variant.threads, variant.shared_bytes, early=True, own=True
    )


def merge_defines(variant: Variant, wide: bool) -> tuple[tuple[str, int], ...]:
    """Macros of the merge kernel that goes with a variant, and with wide runs."""
    few = {"HD": variant.head_dim, "SLICE": variant.slice, "ROWS": variant.rows, "HALF": int(variant.half)}
    return sorted_defines(few | {"WIDE": int(wide)})


@cache
def merge_kernel(variant: Variant, wide: bool) -> Kernel:
    """merge.cu, compiled."""
    return load_kernel("merge.cu", "merge", merge_defines(variant, wide), 256, 0, early=True)


def table_of(format: str, device: torch.device) -> Tensor | None:
    """A trellis format's values as the kernels take them; None for others."""
    if format not in STATE_BITS:
        return None
    return load_table(int(format[5]), device)[0]
