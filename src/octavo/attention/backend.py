"""What a backend is: it plans a step's reading of pages for one layer group, and attends by that plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch

from octavo.attention.turn import band_queries, turn_back, turn_rows
from octavo.formats.base import Layout
from octavo.model.shape import LayerGroup
from octavo.pages.bands import Turns
from octavo.pages.plan import Plan, Segment, make_plan
from octavo.pages.store import GroupPool, LayerPages, Sealer
from octavo.reference.attention import attend

__all__ = ["Alter", "Backend", "StepPlan", "TorchBackend"]


Alter = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Keys and values [T, G, D] → what is stored and read in their place."""


class StepPlan(Protocol):
    """Any plan says where the step's T tokens are written: plain slots [T] and offsets in them [T]."""

    @property
    def slots(self) -> torch.Tensor: ...

    @property
    def offsets(self) -> torch.Tensor: ...


class Backend(ABC):
    """A way to read pages. `layout` is the byte order it wants; `reason` why it was chosen."""

    name: str
    layout: Layout
    graphs: bool = False
    """Whether a decode step can be captured in a CUDA graph."""
    prompt_chunk: int = 512
    """Prompt tokens that a step should have, if nobody says."""
    sealer: Sealer | None = None
    """How complete pages are packed; None: by the codecs."""

    def __init__(self, device: torch.device, reason: str):
        self.device = device
        self.reason = reason

    @abstractmethod
    def plan(self, segments: list[Segment], group: LayerGroup, chunk: int | None = None) -> StepPlan:
        """Who reads what in this step, for one layer group, in bands where there is a `chunk` length."""

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
        """Equalise and rotate the step's rows for layer n of the group, `alter` its keys and values, and
        store those. q [T, H, D], k and v [T, G, D] come back as attention reads them: q once for each band
        of `turns`, [bands · T, H, D]."""
        if turns is not None:
            q = band_queries(q, turns)
        q, k, v = turn_rows(pool, n, q, k, v)
        if alter is not None:
            k, v = alter(k, v)
        pool.append(n, plan.slots, plan.offsets, k, v)
        return q, k, v

    def leave(self, pool: GroupPool, n: int, out: torch.Tensor) -> torch.Tensor:
        """Attention's output [T, H, D], rotated back."""
        return turn_back(pool, n, out)

    @abstractmethod
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
        """q [T, H, D] of the step's tokens (under bands [bands · T, H, D]), whose k, v [T, G, D] are in their
        plain slots already → [T, H, D]."""


class TorchBackend(Backend):
    """The reference attention, on any device."""

    name = "torch"
    layout = "rows"

    def plan(self, segments: list[Segment], group: LayerGroup, chunk: int | None = None) -> Plan:
        return make_plan(segments, group.window, self.device, chunk)

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
        assert isinstance(plan, Plan)
        return attend(q, pages, plan, scale, softcap, sinks)
