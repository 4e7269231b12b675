"""Dual Chunk Attention: a model reads further than it was trained, because no distance ever exceeds that.

What a key or a query is turned by is in pages/bands.py. Here a model is asked which layers take part, whether
its RoPE is understood, and for the rotations of a step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.attention.hook import install
from octavo.errors import OctavoError, UnsupportedModel
from octavo.model.modulo import modulo, true_positions
from octavo.model.pairs import Turning, find_rope
from octavo.model.shape import ModelShape
from octavo.pages.bands import BANDS, Turns
from octavo.pages.segment import Ints

__all__ = ["DualChunk", "StepTurns"]

TOLERANCE = {torch.float32: 3e-3}
"""Relative gap between a key turned here and by the model; float32 angles alone cost 5e-4 at 8,192."""
COARSE = 3e-2
"""The same in 16 bits."""

Kind = tuple[str, int]
"""A layer's type and head dim."""


@dataclass(frozen=True)
class StepTurns:
    """A step's rotations by kind of layer. reach [T] is the highest band of each row, `bands` their count."""

    bands: int
    reach: Tensor
    tables: dict[Kind, tuple[Tensor, Tensor]]


class DualChunk:
    """Dual Chunk Attention for one model.

    chunk    tokens of a chunk, a multiple of the page size; twice that is the greatest distance
    mscale   queries of the layers that take part are multiplied by its square
    layers   that take part: full attention with RoPE
    counts   int64 [layers, 3] on the device: rows whose queries were turned to each band so far, written
             where they are turned; `verify` holds them against the rows that ran
    """

    def __init__(self, module: Any, shape: ModelShape, chunk: int, mscale: float = 1.0):
        install(module)
        self.module, self.chunk, self.mscale = module, chunk, mscale
        rope = find_rope(module, shape.architecture)
        if rope is None:
            raise UnsupportedModel(
                f"{shape.architecture} has no RoPE; Dual Chunk Attention has nothing to turn"
            )
        self.rope = rope
        full = {n for n, layer in enumerate(shape.layers) if layer.window is None}
        if not full:
            raise UnsupportedModel(
                f"all {len(shape.layers)} layers of {shape.architecture} slide over windows and keep true "
                "positions; Dual Chunk Attention has no layer to work on"
            )
        self.kinds: list[Kind] = [
            (kind, layer.head_dim) for kind, layer in zip(self.rope.kinds, shape.layers, strict=True)
        ]
        self.turnings: dict[Kind, Turning] = {
            kind: self.rope.turning(*kind) for kind in {self.kinds[n] for n in full}
        }
        device = next(module.parameters()).device
        self.partners = {kind: t.partner.int() for kind, t in self.turnings.items()}
        self.counts = torch.zeros(len(shape.layers), len(BANDS), dtype=torch.long, device=device)
        self.ran = [0] * len(BANDS)
        self.layers = self._ask(full)
        self.groups = frozenset(
            n for n, group in enumerate(shape.groups) if self.layers.intersection(group.layers)
        )

    def positions(self) -> AbstractContextManager[None]:
        """While it lasts, the layers that take part run at positions modulo the chunk length."""
        return modulo(self.module, self.rope, self.layers, self.chunk)

    def step(self, positions: Tensor, reach: Tensor, bands: int) -> StepTurns:
        """The rotations for rows at `positions` [T]; launches only."""
        own = positions % self.chunk
        further = torch.cat((torch.full_like(own, self.chunk), 2 * self.chunk - own))
        tables = {}
        for kind, turning in self.turnings.items() if bands > 1 else ():
            cos, sin = turning.tables(*self._angles(further, kind))
            tables[kind] = cos.view(2, len(own), -1), sin.view(2, len(own), -1)
        return StepTurns(bands, reach, tables)

    def turns(self, layer: int, step: StepTurns) -> Turns:
        """One layer's part of a step."""
        kind = self.kinds[layer]
        cos, sin = step.tables.get(kind, (None, None)) if layer in self.layers else (None, None)
        partner = None if cos is None else self.partners[kind]
        return Turns(step.bands, cos, sin, partner, step.reach, self.counts[layer])

    def note(self, reach: Ints) -> None:
        """Rows that read up to the bands `reach` [T] are about to run."""
        for band in range(len(BANDS)):
            self.ran[band] += int((reach >= band).sum())

    def restart(self) -> None:
        """Count anew: a forward pass broke off among the layers."""
        self.counts.zero_()
        self.ran = [0] * len(BANDS)

    def verify(self) -> dict[str, int]:
        """Rows that read each band, the same in every layer that takes part.

        Raises OctavoError where a layer did not read the bands of the rows that ran.
        """
        used = self.counts.tolist()
        for n in sorted(self.layers):
            if used[n][1:] != self.ran[1:]:
                raise OctavoError(
                    f"Dual Chunk Attention was not active: layer {n} read the bands succ and inter for "
                    f"{used[n][1]} and {used[n][2]} rows, but {self.ran[1]} and {self.ran[2]} rows ran "
                    "there; do not trust this run, and report it"
                )
        return dict(zip(BANDS, self.ran, strict=True))

    def _angles(self, positions: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
        return self.rope.angles(positions, kind[0])

    # asking the model

    @torch.inference_mode()
    def _ask(self, full: set[int]) -> frozenset[int]:
        """Which of the `full` layers have RoPE. Raises UnsupportedModel where they are not understood."""
        far = 2 * self.chunk - 1
        with true_positions(self.module):
            start, end = self._keys(0), self._keys(far)
        layers = frozenset(n for n in full if gap(start[n], end[n]) > 1e-6)
        if not layers:
            raise UnsupportedModel(
                "no full-attention layer of this model turns its keys (its sliding layers keep true "
                "positions), so Dual Chunk Attention has nothing to change; stay within its trained length"
            )
        where = torch.tensor([far], device=self.counts.device)
        for n in layers:
            cos, sin = self.turnings[self.kinds[n]].tables(*self._angles(where, self.kinds[n]))
            turned = start[n] * cos[0] + start[n][..., self.partners[self.kinds[n]].long()] * sin[0]
            self._check(n, turned, end[n], f"turned by {far} positions")
        with modulo(self.module, self.rope, layers, self.chunk):
            again = self._keys(self.chunk)
        for n in layers:
            self._check(n, start[n], again[n], f"at position {self.chunk} modulo {self.chunk}")
        return layers

    def _check(self, layer: int, ours: Tensor, models: Tensor, what: str) -> None:
        off, most = gap(models, ours), TOLERANCE.get(next(self.module.parameters()).dtype, COARSE)
        if off > most:
            raise UnsupportedModel(
                f"the RoPE of {type(self.module).__name__} is not understood: keys of layer {layer} {what} "
                f"differ from the model's own by {off:.2g} (at most {most:.2g}); serve it with dca off"
            )

    def _keys(self, position: int) -> dict[int, Tensor]:
        """Keys [G, D] of a single token there, by layer."""
        seen: dict[int, Tensor] = {}
        ids = torch.ones(1, 1, dtype=torch.long, device=self.counts.device)
        self.module(
            input_ids=ids, position_ids=ids * position, use_cache=False, logits_to_keep=1, batch=_Watch(seen)
        )
        return seen


class _Watch:
    """Stands for a step's reading: notes the keys, and answers as for a token that sees itself alone."""

    def __init__(self, seen: dict[int, Tensor]):
        self.seen = seen

    def attention(self, _: _Watch, layer: int, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        self.seen[layer] = k[0].float()
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def gap(a: Tensor, b: Tensor) -> float:
    """Relative difference of two tensors."""
    return float((a - b).norm() / a.norm().clamp_min(1e-30))
