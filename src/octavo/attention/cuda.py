"""Attention over pages with the GPU kernels.

Tokens that decode (and short stretches, such as drafts) go through the decode kernel, which reads each shared
page once for all rows that see it. A prefill chunk is wide enough to keep the tensor cores busy by itself:
its past is unpacked into a bounded scratch, a stretch of pages at a time (a sliding window's as a whole), and
read by PyTorch's fused attention; its own tokens it sees as they are. Parts are merged by their log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from octavo.attention.backend import Alter, Backend, StepPlan
from octavo.attention.prefill import Past, attend_chunk, plan_past
from octavo.formats.base import PAGE
from octavo.kernels.append import append_rows, turn_back
from octavo.kernels.decode import DevicePlan, LayerPool, decode
from octavo.kernels.plan import Plan, Reader, plan_items
from octavo.kernels.seal import seal_pages
from octavo.kernels.wide import SAVES, wide_from
from octavo.model.shape import LayerGroup
from octavo.pages.bands import Turns, count_bands, cut, views
from octavo.pages.segment import Segment
from octavo.pages.store import SIDES, GroupPool, LayerPages

__all__ = ["CudaBackend", "CudaPlan", "decode_plan"]

SHORT = 8
"""Segments of at most this many tokens are read by the decode kernel."""


@dataclass(frozen=True)
class CudaPlan:
    """Where the step's tokens go, and its segments by the way they are read.

    `decoding` lists the rows of short segments (None: all rows, in order), which `device` plans; `queries`
    those of their queries, band by band.
    """

    slots: torch.Tensor
    offsets: torch.Tensor
    decoding: torch.Tensor | None
    queries: torch.Tensor | None
    device: DevicePlan | None
    chunks: list[Past]
    tile: int | None = None


class CudaBackend(Backend):
    """Kernels on NVIDIA GPUs from Ampere on."""

    name = "cuda"
    layout = "tile"
    graphs = True
    prompt_chunk = 8192
    sealer = staticmethod(seal_pages)

    def plan(self, segments: list[Segment], group: LayerGroup, chunk: int | None = None) -> CudaPlan:
        parts, bands = cut(segments, chunk), count_bands(segments, chunk)
        short = [s for s in parts if s.n <= SHORT]
        chunks = [plan_past(s, group.window, self.device, chunk) for s in parts if s.n > SHORT]
        slots, offsets = places(segments)
        device, rows, queries = None, None, None
        if short:
            device = DevicePlan.holding(decode_plan(short, group, chunk=chunk, bands=bands), self.device)
        if short and chunks:
            own = np.concatenate([s.start + np.arange(s.n) for s in short])
            rows = self._ints(own)
            queries = self._ints((own + len(slots) * np.arange(bands)[:, None]).ravel())
        return CudaPlan(self._ints(slots), self._ints(offsets), rows, queries, device, chunks)

    def enter(
        self,
        pool: GroupPool,
        n: int,
        plan: StepPlan,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        alter: Alter | None = None,
        turns: Turns | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if alter is not None:
            return super().enter(pool, n, plan, q, k, v, alter, turns)
        assert isinstance(plan, CudaPlan)
        turn_k, turn_v = (pool.rotations[side][n] is not None for side in SIDES)
        return append_rows(
            q, k, v, pool.k_plain[n], pool.v_plain[n], plan.slots, plan.offsets,
            turn_k=turn_k, turn_v=turn_v, scales=pool.scales[n], keep=bool(plan.chunks),
            turns=turns,
        )  # fmt: skip

    def leave(self, pool: GroupPool, n: int, out: torch.Tensor) -> torch.Tensor:
        return out if pool.rotations["v"][n] is None else turn_back(out)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pages: LayerPages,
        plan: StepPlan,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        assert isinstance(plan, CudaPlan)
        sinks = None if sinks is None else sinks.float()
        tokens = len(plan.slots)
        out = q.new_empty(tokens, *q.shape[1:])
        if plan.device is not None:
            rows = q if plan.queries is None else q[plan.queries]
            read = decode(
                rows,
                layer_pool(pages),
                plan.device,
                scale=scale,
                softcap=softcap or 0.0,
                sinks=sinks,
                rows=plan.tile,
            )
            if plan.decoding is None:
                return read
            out[plan.decoding] = read
        bands = q.view(-1, tokens, *q.shape[1:])
        for past in plan.chunks:
            own = slice(past.start, past.start + past.n)
            out[own] = attend_chunk(bands[:, own], k[own], v[own], pages, past, scale, softcap, sinks)
        return out

    def _ints(self, array: np.ndarray[tuple[int], np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def places(segments: list[Segment]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """Plain slots and offsets in them of a step's new tokens, in order."""
    positions = [s.computed + np.arange(s.n) for s in segments]
    slots = [~s.pages[p // PAGE - s.first] for s, p in zip(segments, positions, strict=True)]
    return np.concatenate(slots), np.concatenate(positions) % PAGE


def decode_plan(
    segments: list[Segment],
    group: LayerGroup,
    tokens: int | None = None,
    chunk: int | None = None,
    bands: int = 1,
) -> Plan:
    """Short segments, each within one chunk, as the decode kernel's runs; their tokens are numbered in the
    order given.

    `tokens` pads the plan to that many; the rest see nothing. With a `chunk` length there are `bands` sets of
    queries, and a segment reads by as many of them as it has bands.
    """
    readers, at = [], 0
    tokens = tokens or sum(s.n for s in segments)
    positions = np.zeros((bands, tokens), np.int64)
    for s in segments:
        for view in views(s, chunk):
            first = at + view.band * tokens
            part = view.segment
            readers.append(Reader(part.pages.astype(np.int32), range(first, first + s.n), part.first * PAGE))
        positions[:, at : at + s.n] = s.computed + np.arange(s.n)
        at += s.n
    wide, heads = wide_from(group.head_dim), group.queries_per_head
    return plan_items(readers, positions.ravel(), heads, group.window, bands, wide, SAVES)


def layer_pool(pages: LayerPages) -> LayerPool:
    """A layer's pages as the decode kernel takes them."""
    return LayerPool(
        kept(pages.k_codec.format.name, pages.k_packed, pages.k_plain),
        kept(pages.v_codec.format.name, pages.v_packed, pages.v_plain),
        pages.k_packed,
        pages.v_packed,
        pages.k_plain,
        pages.v_plain,
        pages.k_codec.centred,
    )


def kept(name: str, packed: torch.Tensor, plain: torch.Tensor) -> str:
    """The format the kernel must read: "plain" if nothing is packed or it is the model's own dtype."""
    own = {torch.float16: "f16", torch.bfloat16: "bf16"}[plain.dtype]
    return "plain" if name == own or not len(packed) else name
