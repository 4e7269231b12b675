"""Decode steps as CUDA graphs, one for each batch size of a short list and width of its tiles.

A graph reads everything that changes from fixed addresses: token ids and positions, where their keys and
values go, and the plans of who reads which pages. A step fills those, replays, and finds its logits in a
fixed place. Rows beyond the batch write to a page that nobody reads.
"""

from __future__ import annotations

import gc
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from octavo.attention.cuda import CudaPlan, decode_plan
from octavo.engine.batch import Batch, chunk_lengths, segments_of
from octavo.engine.memory import Memory
from octavo.engine.runner import Runner
from octavo.engine.scheduler import Grant
from octavo.formats.base import PAGE
from octavo.kernels.decode import DevicePlan
from octavo.kernels.plan import TILE, WIDE_TILE, Plan
from octavo.model.shape import LayerGroup, ModelShape
from octavo.pages.bands import BANDS, band_of
from octavo.pages.segment import Segment

__all__ = ["DecodeGraphs"]

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)


class _Quiet:
    """How many captures go on in this process, on whatever threads; garbage is collected when none does."""

    lock, captures, collecting = threading.Lock(), 0, False


@contextmanager
def undisturbed() -> Iterator[None]:
    """While it lasts no garbage is collected: a graph of an engine that is gone may be in it, and to destroy
    one ends a capture."""
    with _Quiet.lock:
        if _Quiet.captures == 0:
            _Quiet.collecting = gc.isenabled()
            gc.disable()
        _Quiet.captures += 1
    try:
        yield
    finally:
        with _Quiet.lock:
            _Quiet.captures -= 1
            if _Quiet.captures == 0 and _Quiet.collecting:
                gc.enable()


class DecodeGraphs:
    """Graphs over `runner`'s model, captured when a batch size and tiles of a width are first met."""

    def __init__(self, runner: Runner, memory: Memory, shape: ModelShape, context: int):
        self.runner, self.memory, self.shape, self.context = runner, memory, shape, context
        self._graphs: dict[tuple[int, ...], DecodeGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.capture_s = 0.0

    def run(self, grants: list[Grant], ids: torch.Tensor | None = None) -> torch.Tensor | None:
        """Logits [B, V] of a step in which every grant decodes one token; None if no graph has the room.
        `ids` [B] are the tokens where only the device knows them. Launches only."""
        if len(grants) > SIZES[-1]:
            return None
        size = SIZES[bisect_left(SIZES, len(grants))]
        segments = segments_of(self.memory.ledger, grants)
        plans = self.plan(segments, size)
        tiles = [8 if plan.most_rows <= 8 else TILE for plan in plans]
        wide = [len(plan.wide_runs) > 0 for plan in plans]
        if (graph := self._graphs.get((size, *tiles, *wide))) is None:
            began = time.perf_counter()
            graph = self._graphs[size, *tiles, *wide] = DecodeGraph(self, size, tiles, wide, self._pool)
            self.capture_s += time.perf_counter() - began
        return graph.run(grants, ids, segments, plans)

    def clear(self) -> None:
        """All graphs go back, at once: among garbage they would go later, perhaps while another engine
        captures."""
        self._graphs.clear()

    def plan(self, segments: list[list[Segment]], size: int) -> list[Plan]:
        """Who reads what, by group, padded to `size` sequences."""
        groups = self.shape.groups
        chunks = chunk_lengths(self.runner.attention.dual, len(groups))
        return [
            decode_plan(own, group, size, chunk, len(BANDS) if chunk else 1)
            for own, group, chunk in zip(segments, groups, chunks, strict=True)
        ]


class DecodeGraph:
    """One batch size and, for each group, width of tiles and whether there are wide runs: fixed buffers and
    the graph that reads them."""

    def __init__(self, owner: DecodeGraphs, size: int, tiles: list[int], wide: list[bool], pool: Any):
        self.owner, self.size = owner, size
        device, groups = owner.runner.device, owner.shape.groups
        self.dual = owner.runner.attention.dual
        rows = 3 + 2 * len(groups)
        self.host = torch.zeros(rows, size, dtype=torch.long, pin_memory=True)
        self.fixed = torch.zeros(rows, size, dtype=torch.long, device=device)
        self.plans = [
            device_plan(owner, group, size, many, device) for group, many in zip(groups, wide, strict=True)
        ]
        self.batch = Batch(
            ids=self.fixed[:1],
            positions=self.fixed[1:2],
            wanted=torch.arange(size, device=device),
            plans=[
                CudaPlan(self.fixed[3 + 2 * n], self.fixed[4 + 2 * n], None, None, plan, [], tile)
                for n, (tile, plan) in enumerate(zip(tiles, self.plans, strict=True))
            ],
            segments=[[] for _ in groups],
            reach=None if self.dual is None else self.fixed[2],
            bands=len(BANDS),
        )
        self.sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._fill([], None, self.batch.segments, owner.plan(self.batch.segments, size))
        self.graph = torch.cuda.CUDAGraph()
        self._capture(pool)

    def _capture(self, pool: Any) -> None:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.owner.runner.logits(self.batch, compiled=True)
        torch.cuda.current_stream().wait_stream(stream)
        with undisturbed(), torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.logits = self.owner.runner.logits(self.batch, compiled=True)

    def run(
        self,
        grants: list[Grant],
        ids: torch.Tensor | None,
        segments: list[list[Segment]],
        plans: list[Plan],
    ) -> torch.Tensor | None:
        if not all(room.fits(plan) for room, plan in zip(self.plans, plans, strict=True)):
            return None
        self._fill(grants, ids, segments, plans)
        self.graph.replay()
        return self.logits[: len(grants)]

    def _fill(
        self,
        grants: list[Grant],
        ids: torch.Tensor | None,
        segments: list[list[Segment]],
        plans: list[Plan],
    ) -> None:
        """Bring this step's numbers to where the graph reads them; padding rows write to the spare page."""
        host, count = self.host, len(grants)
        self.sent.synchronize()  # the step before may still be on its way from the same memory
        host.zero_()
        if ids is None:
            host[0, :count] = torch.tensor([g.sequence.tokens[g.sequence.computed] for g in grants])
        computed = np.array([g.sequence.computed for g in grants], np.int64)
        host[1, :count] = torch.from_numpy(computed) + torch.tensor([g.sequence.offset for g in grants])
        if self.dual is not None:
            reach = band_of(computed, self.dual.chunk)
            self.dual.note(reach)
            host[2, :count] = torch.from_numpy(reach)
        for n, pool in enumerate(self.owner.memory.pools):
            host[3 + 2 * n] = pool.spare
            slots = [int(~s.pages[s.computed // PAGE - s.first]) for s in segments[n]]
            host[3 + 2 * n, :count] = torch.tensor(slots)
            host[4 + 2 * n, :count] = torch.from_numpy(computed % PAGE)
            self.plans[n].load(plans[n])
        self.fixed.copy_(self.host, non_blocking=True)
        self.sent.record()
        if ids is not None:
            self.fixed[0, :count] = ids


def device_plan(
    owner: DecodeGraphs, group: LayerGroup, size: int, wide: bool, device: torch.device
) -> DevicePlan:
    """Room for the plans of `size` sequences of any length: prompts that begin alike but part at many places
    make several runs each. A step that needs still more goes without a graph."""
    index = owner.shape.groups.index(group)
    most = owner.context if group.window is None else group.window + PAGE
    pages = min(
        size * (most // PAGE + 2), sum(owner.memory.ledger.groups[index].allocator.totals.values()) * 2 + size
    )
    tiles = -(-size * group.queries_per_head // TILE) + size
    dual = owner.runner.attention.dual
    bands = len(BANDS) if chunk_lengths(dual, index + 1)[index] else 1
    return DevicePlan(
        max_runs=bands * (4 * tiles + 8),
        max_wide=bands * (size * group.queries_per_head // WIDE_TILE + 4) if wide else 0,
        max_pages=pages,
        max_tokens=bands * size,
        group=group.queries_per_head,
        device=device,
    )
