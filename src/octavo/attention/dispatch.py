"""Which backend reads the pages, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.formats.base import Layout
from octavo.pages.plan import Plan
from octavo.reference.attention import LayerPages, attend

__all__ = ["Backend", "choose_backend"]


class Attend(Protocol):
    """q [T, H, D] over pages → [T, H, D]; see reference.attention.attend."""

    def __call__(
        self,
        q: torch.Tensor,
        pages: LayerPages,
        plan: Plan,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Backend:
    """A way to read pages: its name, the reason it was chosen, and the byte order it wants."""

    name: str
    reason: str
    layout: Layout
    attend: Attend


def choose_backend(device: torch.device) -> Backend:
    """The fastest backend that can serve `device`."""
    return Backend("torch", f"reference attention in PyTorch: device is {device.type}", "rows", attend)
