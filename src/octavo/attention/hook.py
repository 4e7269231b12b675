"""The attention function Transformers calls in every layer, in place of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from transformers import AttentionInterface

from octavo.attention.backend import Backend, StepPlan
from octavo.errors import OctavoError
from octavo.formats.base import PAGE
from octavo.model.shape import ModelShape
from octavo.pages.segment import Segment
from octavo.pages.store import SIDES, GroupPool

if TYPE_CHECKING:
    from octavo.attention.dca import DualChunk, StepTurns

__all__ = ["NAME", "Attention", "Reading", "install"]

NAME = "octavo"
HANDLES: WeakValueDictionary[int, Attention] = WeakValueDictionary()
"""Attention objects by the number that stands for them in compiled code, where objects cannot travel."""


class Attention:
    """Rotates, appends and attends: one call per layer and step.

    With `round_trip` every key and value of the step is first encoded and decoded, so that even a row's own
    page is read as if packed (for evaluation: comparable with engines that quantise token by token). Pages
    are then never sealed.
    """

    def __init__(
        self,
        shape: ModelShape,
        pools: list[GroupPool],
        backend: Backend,
        *,
        exact_pages: int,
        round_trip: bool = False,
    ):
        self.pools = pools
        self.backend = backend
        self.reading: Reading | None = None
        self.dual: DualChunk | None = None
        self.watch: Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None] | None = None
        """Is shown layer, q [T, H, D], k and v [T, G, D] after RoPE, before anything else happens to them."""
        HANDLES[id(self)] = self
        self.round_trip = round_trip
        self.exact = exact_pages * PAGE
        self.place = {
            layer: (g, n) for g, group in enumerate(shape.groups) for n, layer in enumerate(group.layers)
        }
        self.layers = {layer: pools[g].layer(n) for layer, (g, n) in self.place.items()}

    def __call__(
        self,
        reading: Reading,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """q [T, H, D], k and v [T, G, D] after RoPE → attention output [T, H, D]."""
        group, n = self.place[layer]
        pool, plan = self.pools[group], reading.plans[group]
        if self.watch is not None:
            self.watch(layer, q, k, v)
        alter = None
        if self.round_trip and pool.store.packs:
            alter = partial(self._round_trip, pool, n, reading.segments[group])
        turns = None
        if self.dual is not None and reading.turns is not None and group in self.dual.groups:
            turns = self.dual.turns(layer, reading.turns)
            if layer in self.dual.layers:
                scale = scale * self.dual.mscale**2
        q, k, v = self.backend.enter(pool, n, plan, q, k, v, alter, turns)
        out = self.backend.attend(q, k, v, self.layers[layer], plan, scale, softcap, sinks)
        return self.backend.leave(pool, n, out.to(v.dtype))

    def _round_trip(
        self, pool: GroupPool, layer: int, segments: list[Segment], k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ends = [(s.start + min(s.n, max(0, self.exact - s.computed)), s.start + s.n) for s in segments]
        rows = [slice(begin, end) for begin, end in ends if begin < end]
        if not rows:
            return k, v
        k, v = k.clone(), v.clone()
        for x, side in zip((k, v), SIDES, strict=True):
            back = pool.store.round_trip([x[own] for own in rows], side, layer)
            for own, part in zip(rows, back, strict=True):
                x[own] = part
        return k, v


class Reading:
    """What travels to the attention function through the model's keyword arguments: a step's plans by
    group, and its rotations under Dual Chunk Attention."""

    def __init__(
        self,
        attention: Attention,
        plans: list[StepPlan],
        segments: list[list[Segment]],
        turns: StepTurns | None = None,
    ):
        self.attention = attention
        self.plans = plans
        self.segments = segments
        self.turns = turns


def octavo_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    batch: Reading | int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' signature: [1, heads, T, D] in, [1, T, H, D] out. Causality and windows come from the
    plan."""
    if batch is None:
        raise OctavoError(
            "this model was given to an Octavo engine and runs only inside it; load it again to use it alone"
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if isinstance(batch, int):
        return attend_by_handle(q, k, v, s_aux, batch, layer, scale, softcap).unsqueeze(0), None
    return batch.attention(batch, layer, q, k, v, scale, softcap, s_aux).unsqueeze(0), None


@torch.library.custom_op("octavo::attend", mutates_args=())
def attend_by_handle(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    handle: int,
    layer: int,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """What compiled code calls in place of `Attention`: the reading is the one its runner has set."""
    attention = HANDLES[handle]
    assert attention.reading is not None
    return attention(attention.reading, layer, q, k, v, scale, softcap, sinks).contiguous()


@attend_by_handle.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    handle: int,
    layer: int,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def install(module: torch.nn.Module) -> None:
    """Make a loaded Transformers model call `octavo_attention` in every layer."""
    AttentionInterface.register(NAME, octavo_attention)
    module.set_attn_implementation(NAME)  # type: ignore[operator]
