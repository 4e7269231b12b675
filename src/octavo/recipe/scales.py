"""Channel scales of keys: k · s is kept, and queries are divided by s, so scores stay what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.errors import InvalidRequest

__all__ = ["Scales"]


class Scales:
    """s [KV heads, head dim] float32 for each layer that has one; never changes.

    rule     how they were chosen: "ratio" by `octavo calibrate`
    sha256   of all values: scales that agree in it are equal
    """

    def __init__(self, layers: Mapping[int, Tensor], rule: str) -> None:
        self.rule = rule
        self._layers = {n: layers[n].detach().float().cpu().clone() for n in sorted(layers)}
        digest = hashlib.sha256(rule.encode())
        for n, scale in self._layers.items():
            if scale.dim() != 2 or not bool(torch.isfinite(scale).all() and (scale > 0).all()):
                raise InvalidRequest(f"layer {n}: scales are finite, above 0 and [KV heads, head dim]")
            digest.update(f"{n} {tuple(scale.shape)}".encode())
            digest.update(scale.numpy().tobytes())
        self.sha256 = digest.hexdigest()

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have scales."""
        return tuple(self._layers)

    def of(self, layer: int) -> Tensor | None:
        """A copy of a layer's scales [G, D]; None where its keys stay as they are."""
        scale = self._layers.get(layer)
        return None if scale is None else scale.clone()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scales) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __repr__(self) -> str:
        return f"{self.rule} {self.sha256[:16]}"
