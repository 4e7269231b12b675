"""Dual Chunk Attention in Transformers, slowly: a model whose attention sees queries and keys before RoPE.

Its code's own `apply_rotary_pos_emb` is kept from turning anything; the attention function here then turns
keys to j mod c and queries three times, each from nothing, and picks among three whole score matrices.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from tests.tiny import tiny

__all__ = ["slow_logits"]

NAME = "slow_dual_chunk"
FULL = "full_attention"


class Slow:
    """One pass over a model. `unturned` is whether the layer at hand wanted RoPE."""

    def __init__(self, module: Any, chunk: int, mscale: float, exact: bool):
        self.code = sys.modules[type(module).__module__]
        self.apply = self.code.apply_rotary_pos_emb
        self.rotary = next(m for m in module.modules() if hasattr(m, "inv_freq") or hasattr(m, "rope_type"))
        config = module.config
        self.kinds = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
        self.window, self.chunk, self.mscale = getattr(config, "sliding_window", None), chunk, mscale
        self.exact, self.unturned = exact, False

    @contextmanager
    def before_rope(self) -> Iterator[None]:
        def stay(q: Tensor, k: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            self.unturned = True
            return q, k

        self.code.apply_rotary_pos_emb = stay  # type: ignore[attr-defined]
        try:
            yield
        finally:
            self.code.apply_rotary_pos_emb = self.apply  # type: ignore[attr-defined]

    def turn(self, x: Tensor, positions: Tensor, kind: str) -> Tensor:
        cos, sin = (self.exact_angles if self.exact else self.angles)(x, positions, kind)
        turned: Tensor = self.apply(x, x, cos, sin)[0]
        return turned

    def angles(self, x: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        typed = {"layer_type": kind} if isinstance(self.rotary.rope_type, dict) else {}
        cos, sin = self.rotary(x, positions[None], **typed)
        return cos, sin

    def exact_angles(self, x: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The same in float64: float32 angles are 2e-5 off at 384 already."""
        prefix = f"{kind}_" if isinstance(self.rotary.rope_type, dict) else ""
        angles = positions[:, None].double() * getattr(self.rotary, f"{prefix}inv_freq").double()
        width = self.angles(x, positions, kind)[0].shape[-1]
        angles = angles.repeat(1, width // angles.shape[1])[None]
        scaling = getattr(self.rotary, f"{prefix}attention_scaling")
        return angles.cos() * scaling, angles.sin() * scaling

    def scores(self, q: Tensor, k: Tensor, kind: str) -> Tensor:
        """q [1, H, T, D], k [1, G, T, D] → [1, H, T, T] before scaling and masks."""
        at = torch.arange(q.shape[2])
        age = at[:, None] // self.chunk - at // self.chunk

        def dot(q: Tensor, k: Tensor) -> Tensor:
            return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3)

        turns, self.unturned = self.unturned, False
        if not turns:
            return dot(q, k)
        if kind != FULL:
            return dot(self.turn(q, at, kind), self.turn(k, at, kind))
        c, k = self.chunk, self.turn(k, at % self.chunk, kind)
        intra = dot(self.turn(q, at % c, kind), k)
        succ = dot(self.turn(q, at % c + c, kind), k)
        inter = dot(self.turn(q, torch.full_like(at, 2 * c), kind), k)
        return torch.where(age == 0, intra, torch.where(age == 1, succ, inter)) * self.mscale**2

    def hidden(self, n: int, kind: str) -> Tensor:
        gap = torch.arange(n)[:, None] - torch.arange(n)
        return gap < 0 if kind == FULL else (gap < 0) | (gap >= self.window)


def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, *, scaling: float,
              slow: Slow, softcap: float | None = None, s_aux: Tensor | None = None,
              **_: Any) -> tuple[Tensor, None]:  # fmt: skip
    kind, dtype = slow.kinds[module.layer_idx], query.dtype
    if slow.exact:
        query, key, value = query.double(), key.double(), value.double()
    scores = slow.scores(query, key, kind) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(slow.hidden(query.shape[2], kind), -torch.inf)
    if s_aux is not None:
        scores = torch.cat((scores, s_aux.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    out = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return out.transpose(1, 2).to(dtype), None


AttentionInterface.register(NAME, attention)


@torch.inference_mode()
def slow_logits(
    family: str, tokens: Sequence[int], chunk: int, mscale: float = 1.0, *, exact: bool, **overrides: Any
) -> Tensor:
    """Logits [n, V] of a tiny model; `exact` has angles and attention in float64."""
    module: Any = tiny(family, **overrides)
    module.set_attn_implementation(NAME)
    slow = Slow(module, chunk, mscale, exact)
    with slow.before_rope():
        out: Tensor = module(input_ids=torch.tensor([list(tokens)]), use_cache=False, slow=slow).logits[0]
    return out.float()
