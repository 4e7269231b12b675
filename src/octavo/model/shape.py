"""What the engine must know of a model, as pure data: no torch, no transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["LayerGroup", "LayerShape", "ModelShape"]


@dataclass(frozen=True)
class LayerShape:
    """One attention layer. `window` counts the tokens a query sees, itself included; None is all."""

    index: int
    q_heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def group_key(self) -> tuple[int, int, int, int]:
        return (self.q_heads, self.kv_heads, self.head_dim, self.window or 0)


@dataclass(frozen=True)
class LayerGroup:
    """Layers with the same heads, head_dim and window; they share one page table."""

    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    layers: tuple[int, ...]

    @property
    def queries_per_head(self) -> int:
        """Query heads that read one KV head."""
        return self.q_heads // self.kv_heads


@dataclass(frozen=True)
class ModelShape:
    """Sizes and limits of one model.

    `context` is the trained length in tokens; `dtype` the torch dtype's name the weights run in.
    """

    architecture: str
    layers: tuple[LayerShape, ...]
    hidden: int
    vocab: int
    context: int
    dtype: str = "float32"
    parameters: int = 0
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layer groups in order of first appearance; "full", "sliding", numbered where one name repeats."""
        found: dict[tuple[int, int, int, int], list[LayerShape]] = {}
        for layer in self.layers:
            found.setdefault(layer.group_key, []).append(layer)
        bases = ["sliding" if members[0].window else "full" for members in found.values()]
        groups = []
        for n, members in enumerate(found.values()):
            first, base = members[0], bases[n]
            name = base if bases.count(base) == 1 else f"{base}{bases[:n].count(base)}"
            layers = tuple(m.index for m in members)
            groups.append(
                LayerGroup(name, first.q_heads, first.kv_heads, first.head_dim, first.window, layers)
            )
        return tuple(groups)

    def kv_values_per_token(self) -> int:
        """Stored K and V values of one token over all layers."""
        return sum(2 * layer.kv_heads * layer.head_dim for layer in self.layers)
