"""How a model's RoPE turns channels, found by asking its own code.

Families pair channel i with i + D/2 (llama), or 2i with 2i + 1 (glm4), or leave the last ones alone; their
code says which only by doing it. So unit vectors are turned: by 90 degrees each lands on its partner, and by
any other angle they show the cosine and the sine of every channel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import UnsupportedModel
from octavo.model.describe import layer_kinds, modelling, text_config
from octavo.model.shape import ModelShape

__all__ = ["Rope", "Turning", "find_rope", "rope_partners"]


@dataclass(frozen=True)
class Turning:
    """One kind of layer: `turn` is the family's apply function, called on the first `channels` of a head;
    partner int64 [D], where the rotary is, is every channel's other half, itself where it is not turned."""

    turn: Callable[..., Any]
    channels: int
    partner: Tensor

    def tables(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [N, width] as the family's rotary gives them → C, S [N, D] so that its code turns x into
        x · C + x[partner] · S."""
        n, d, some = len(cos), len(self.partner), self.channels
        place = torch.arange(d, device=cos.device)
        lower = (place <= self.partner)[:some]
        halves = torch.stack((lower, ~lower)).float()[None, :, None].expand(1, 2, n, some)
        a, b = apply(self.turn, halves, cos[None], sin[None])[0]
        c, s = torch.ones(n, d, device=cos.device), torch.zeros(n, d, device=cos.device)
        c[:, :some] = torch.where(lower, a, b)
        s[:, :some] = torch.where(lower, b, a) * (place != self.partner)[:some]
        return c, s


@dataclass(frozen=True)
class Rope:
    """A model's rotary module and what turns with it. `kinds` are the layers' types."""

    rotary: nn.Module
    turn: Callable[..., Any]
    kinds: list[str]

    @property
    def typed(self) -> bool:
        """Whether the rotary has frequencies by layer type."""
        return "layer_type" in inspect.signature(self.rotary.forward).parameters

    def angles(self, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, width] float32 of positions [N], without the rotary's own scaling."""
        where = {"layer_type": kind} if self.typed else {}
        x = torch.zeros(1, 1, 1, device=positions.device)
        cos, sin = self.rotary.forward(x, positions[None], **where)
        scaling = getattr(
            self.rotary, f"{kind}_attention_scaling" if self.typed else "attention_scaling", 1.0
        )
        return cos[0] / scaling, sin[0] / scaling

    def turning(self, kind: str, head_dim: int) -> Turning:
        """How layers of a kind turn. Raises UnsupportedModel where channels do not turn in pairs."""
        device = next(self.rotary.buffers()).device
        width = self.angles(torch.zeros(1, dtype=torch.long, device=device), kind)[0].shape[-1]
        found = find_turning(self.turn, width, head_dim)
        return replace(found, partner=found.partner.to(device))


def find_rope(module: nn.Module, architecture: str) -> Rope | None:
    """The RoPE of a model, None where it has none. Raises UnsupportedModel where it is code of its own."""
    config: Any = module.config
    text = text_config(config)
    code = modelling(text) or modelling(config)
    rotary = next((m for m in module.modules() if hasattr(m, "rope_type")), None)
    if rotary is None:
        return None
    turn = getattr(code, "apply_rotary_pos_emb", None)
    if turn is None:
        raise UnsupportedModel(f"{architecture} turns its keys by code of its own, which cannot be asked")
    return Rope(rotary, turn, layer_kinds(text))


@torch.inference_mode()
def rope_partners(module: nn.Module, shape: ModelShape) -> list[Tensor]:
    """For each layer the partner of every channel, int64 [head dim]; a channel that is not turned is its own.

    Raises UnsupportedModel where the model's code cannot be asked.
    """
    rope = find_rope(module, shape.architecture)
    if rope is None:
        return [torch.arange(layer.head_dim) for layer in shape.layers]
    kinds = [(kind, layer.head_dim) for kind, layer in zip(rope.kinds, shape.layers, strict=True)]
    found = {key: rope.turning(*key).partner.cpu() for key in dict.fromkeys(kinds)}
    return [found[kind] for kind in kinds]


def find_turning(turn: Callable[..., Any], width: int, head_dim: int) -> Turning:
    """Where 90 degrees take each channel. `width` cosines are for all channels or the first."""
    own = torch.arange(head_dim)
    for channels in (head_dim, width):  # some models cut off what is not turned before they turn the rest
        unit = torch.eye(channels)[None, None]
        try:
            image = apply(turn, unit, torch.zeros(1, channels, width), torch.ones(1, channels, width))[0, 0]
        except RuntimeError:
            continue
        own[:channels] = image.abs().argmax(-1)
        if bool((own[own] == torch.arange(head_dim)).all()):
            return Turning(turn, channels, own)
    raise UnsupportedModel(
        f"RoPE over {width} of {head_dim} channels does not turn them in pairs; use a recipe without scales "
        "or Dual Chunk Attention"
    )


def apply(turn: Callable[..., Any], x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [1, heads, N, channels] turned by the family's function, called as the family calls it."""
    one = "x" in inspect.signature(turn).parameters  # Gemma 4 turns queries and keys one by one
    image: Tensor = turn(x, cos, sin) if one else turn(x, x, cos, sin)[0]
    return image
