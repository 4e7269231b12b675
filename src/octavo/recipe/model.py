"""Which model a recipe was made for."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidRequest
from octavo.model.shape import ModelShape

__all__ = ["ModelFacts"]


@dataclass(frozen=True)
class ModelFacts:
    """A model's name (for people) and what must agree: architecture, cache layout and weights.

    kv        one phrase a layer group: "full: 30 layers, 3 KV heads of 64"
    weights   a hash of the weights, the same in float32 and bfloat16; "" where it is not known
    """

    name: str
    architecture: str
    kv: tuple[str, ...]
    weights: str = ""

    @classmethod
    def of(cls, shape: ModelShape, name: str, weights: str = "") -> ModelFacts:
        """The facts of a model."""
        kv = tuple(
            f"{g.name}: {len(g.layers)} layers, {g.kv_heads} KV heads of {g.head_dim}" for g in shape.groups
        )
        return cls(name, shape.architecture, kv, weights)

    def check(self, other: ModelFacts) -> None:
        """Raise InvalidRequest, saying what differs, unless `other` is the same model.

        Weights are compared where both are known.
        """
        told = [
            f"{what} {mine or 'none'} there, {theirs or 'none'} here"
            for what, mine, theirs in (
                ("architecture", self.architecture, other.architecture),
                ("cache", "; ".join(self.kv), "; ".join(other.kv)),
                ("weights", self.weights, other.weights or self.weights),
            )
            if mine and mine != theirs
        ]
        if told:
            raise InvalidRequest(
                f"the recipe was made for {self.name}, not for {other.name}: {'; '.join(told)}; "
                "make one for this model with octavo calibrate"
            )
