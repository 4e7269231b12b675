"""RoPE at positions modulo a chunk length, in a model's full-attention layers alone.

Sliding-window layers keep true positions, and often share the rotary module with the others, so the module
is left as it is: a hook behind it computes the second set of cosines and sines, and a hook before each
full-attention layer hands those over instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from octavo.errors import UnsupportedModel
from octavo.model.describe import FULL
from octavo.model.pairs import Rope

__all__ = ["modulo", "true_positions"]

_HELD = "_octavo_modulo"
_GIVEN = "position_embeddings"


class _Modulo:
    """What the hooks of one model share. They do nothing while `chunk` is None."""

    def __init__(self, rope: Rope):
        self.rope = rope
        self.chunk: int | None = None
        self.layers: frozenset[int] = frozenset()
        self.given: tuple[Tensor, Tensor] | None = None

    def after_rotary(self, rotary: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self.chunk is None:
            return
        names = dict(zip(("x", "position_ids", "layer_type"), args, strict=False)) | kwargs
        if names.get("layer_type", FULL) == FULL:
            names["position_ids"] = names["position_ids"] % self.chunk
            self.given = rotary.forward(**names)

    def before_layer(self, layer: Any, args: Any, kwargs: Any) -> Any:
        if self.chunk is None or layer.layer_idx not in self.layers:
            return None
        return args, {**kwargs, _GIVEN: self.given}


@contextmanager
def modulo(module: Any, rope: Rope, layers: Iterable[int], chunk: int) -> Iterator[None]:
    """While it lasts, `layers` of the model run with positions modulo `chunk`."""
    held: _Modulo | None = getattr(module, _HELD, None)
    held = held or _install(module, rope)
    with _set(held, chunk, frozenset(layers)):
        yield


@contextmanager
def true_positions(module: Any) -> Iterator[None]:
    """While it lasts, all layers run with the positions they are given."""
    held: _Modulo | None = getattr(module, _HELD, None)
    if held is None:
        yield
        return
    with _set(held, None, frozenset()):
        yield


@contextmanager
def _set(held: _Modulo, chunk: int | None, layers: frozenset[int]) -> Iterator[None]:
    before = held.chunk, held.layers
    held.chunk, held.layers = chunk, layers
    try:
        yield
    finally:
        held.chunk, held.layers = before


def _install(module: Any, rope: Rope) -> _Modulo:
    held = _Modulo(rope)
    takers = [m for m in module.modules() if hasattr(m, "layer_idx") and _takes_angles(m)]
    if not takers:
        raise UnsupportedModel(
            f"{type(module).__name__} does not hand its layers their RoPE angles, so they cannot get others; "
            "Dual Chunk Attention needs that"
        )
    rope.rotary.register_forward_hook(held.after_rotary, with_kwargs=True)
    for taker in takers:
        taker.register_forward_pre_hook(held.before_layer, with_kwargs=True)
    setattr(module, _HELD, held)
    return held


def _takes_angles(module: nn.Module) -> bool:
    return _GIVEN in inspect.signature(module.forward).parameters
