"""What a backend is: it plans a step's reading of pages for one layer group, and attends by that plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from octavo.formats.base import Layout
from octavo.model.shape import LayerGroup
from octavo.pages.plan import Plan, Segment, make_plan
from octavo.pages.store import LayerPages
from octavo.reference.attention import attend

__all__ = ["Backend", "StepPlan", "TorchBackend"]


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

    def __init__(self, device: torch.device, reason: str):
        self.device = device
        self.reason = reason

    @abstractmethod
    def plan(self, segments: list[Segment], group: LayerGroup) -> StepPlan:
        """Who reads what in this step, for one layer group."""

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
        """q [T, H, D] of the step's tokens, whose k, v [T, G, D] are in their plain slots already → [T, H,
        D]."""


class TorchBackend(Backend):
    """The reference attention, on any device."""

    name = "torch"
    layout = "rows"

    def plan(self, segments: list[Segment], group: LayerGroup) -> Plan:
        return make_plan(segments, group.window, self.device)

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
