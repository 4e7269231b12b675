"""A step's tokens, flattened: ids and positions [1, T], the rows whose logits are wanted, and the plans by
group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from octavo.attention.backend import Backend, StepPlan
from octavo.attention.dca import DualChunk
from octavo.engine.scheduler import Grant
from octavo.model.shape import LayerGroup
from octavo.pages.bands import band_of
from octavo.pages.ledger import Holding, Ledger
from octavo.pages.segment import Segment

__all__ = ["Batch", "chunk_lengths", "make_batch", "segments_of"]


@dataclass(frozen=True)
class Batch:
    """What one forward pass needs. `wanted` [W] are rows of the flat batch; `segments` are by group.

    `positions` are those of RoPE: a token's place in its sequence, and what a context shift dropped. Under
    Dual Chunk Attention `reach` [T] is the highest band of each row, and `bands` their count.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor
    plans: list[StepPlan]
    segments: list[list[Segment]]
    reach: torch.Tensor | None = None
    bands: int = 1


def make_batch(
    ledger: Ledger,
    grants: list[Grant],
    backend: Backend,
    groups: tuple[LayerGroup, ...],
    *,
    dual: DualChunk | None = None,
    all_rows: bool = False,
) -> Batch:
    """Flatten `grants`; logits are wanted where a sequence's last known token runs (or of `all_rows`)."""
    ids: list[int] = []
    places: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    for grant in grants:
        s, begin = grant.sequence, grant.sequence.computed
        ids += s.tokens[begin : begin + grant.n]
        places += range(begin, begin + grant.n)
        positions += range(s.offset + begin, s.offset + begin + grant.n)
        if begin + grant.n == len(s.tokens) and not s.pinned:
            wanted.append(len(ids) - 1)
    segments = segments_of(ledger, grants)
    chunks = chunk_lengths(dual, len(groups))
    plans = [backend.plan(*each) for each in zip(segments, groups, chunks, strict=True)]
    rows = range(len(ids)) if all_rows else wanted

    def tensor(values: object) -> torch.Tensor:
        return torch.tensor(values, device=backend.device, dtype=torch.long)

    reach, bands = None, 1
    if dual is not None:
        own = band_of(np.array(places), dual.chunk)
        dual.note(own)
        reach, bands = tensor(own), 1 + int(own.max())
    return Batch(tensor([ids]), tensor([positions]), tensor(list(rows)), plans, segments, reach, bands)


def chunk_lengths(dual: DualChunk | None, groups: int) -> list[int | None]:
    """The chunk length of each layer group, None where its layers read without bands."""
    return [dual.chunk if dual is not None and n in dual.groups else None for n in range(groups)]


def segments_of(ledger: Ledger, grants: list[Grant]) -> list[list[Segment]]:
    """Per layer group, each grant's tokens and pages."""
    starts = np.cumsum([0, *(grant.n for grant in grants)])
    return [
        [segment(ledger, n, grant, int(start)) for grant, start in zip(grants, starts, strict=False)]
        for n in range(len(ledger.groups))
    ]


def segment(ledger: Ledger, group: int, grant: Grant, start: int) -> Segment:
    holding: Holding = grant.sequence.holding
    side = ledger.groups[group]
    first = side.first_needed(grant.sequence.computed)
    ids = np.frombuffer(holding.tables[group], np.int32)[first:]
    return Segment(
        start, grant.n, grant.sequence.computed, first, side.allocator.address[ids].astype(np.int64)
    )
