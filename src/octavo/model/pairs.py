"""Which channels a model's RoPE turns together, found by asking its own code.

Families pair channel i with i + D/2 (llama), or 2i with 2i + 1 (glm4), or leave the last ones alone; their
code says which only by doing it. So the unit vectors are turned by 90 degrees: each lands on its partner.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import UnsupportedModel
from octavo.model.describe import layer_kinds, modelling, text_config
from octavo.model.shape import ModelShape

__all__ = ["rope_partners"]


@torch.inference_mode()
def rope_partners(module: nn.Module, shape: ModelShape) -> list[Tensor]:
    """For each layer the partner of every channel, int64 [head dim]; a channel that is not turned is its own.

    Raises UnsupportedModel where the model's code cannot be asked.
    """
    config: Any = module.config
    text = text_config(config)
    code = modelling(text) or modelling(config)
    rotary = next((m for m in module.modules() if hasattr(m, "rope_type")), None)
    if rotary is None:
        return [torch.arange(layer.head_dim) for layer in shape.layers]
    turn = getattr(code, "apply_rotary_pos_emb", None)
    if turn is None:
        raise UnsupportedModel(
            f"{shape.architecture} turns its keys by code of its own, which scales cannot be "
            "paired by; use a recipe without scales"
        )
    kinds = [(kind, layer.head_dim) for kind, layer in zip(layer_kinds(text), shape.layers, strict=True)]
    found = {(kind, d): partners(turn, turned_channels(rotary, kind), d) for kind, d in dict.fromkeys(kinds)}
    return [found[kind] for kind in kinds]


def turned_channels(rotary: Any, kind: str) -> int:
    """Width of the cosines that a rotary hands to layers of this kind."""
    device = next(rotary.buffers()).device
    typed = "layer_type" in inspect.signature(rotary.forward).parameters
    where = {"layer_type": kind} if typed else {}
    cos, _ = rotary(
        torch.zeros(1, 1, 1, device=device), torch.zeros(1, 1, dtype=torch.long, device=device), **where
    )
    return int(cos.shape[-1])


def partners(turn: Callable[..., Any], width: int, head_dim: int) -> Tensor:
    """Where 90 degrees take each channel, int64 [D]. `width` cosines are for all channels or the first."""
    own = torch.arange(head_dim)
    for channels in (head_dim, width):  # some models cut off what is not turned before they turn the rest
        try:
            own[:channels] = quarter_turn(turn, width, channels).abs().argmax(-1)
        except RuntimeError:
            continue
        if bool((own[own] == torch.arange(head_dim)).all()):
            return own
    raise UnsupportedModel(
        f"RoPE over {width} of {head_dim} channels does not turn them in pairs; use a recipe without scales"
    )


def quarter_turn(turn: Callable[..., Any], width: int, channels: int) -> Tensor:
    """The images of the unit vectors [channels, channels]."""
    unit = torch.eye(channels)[None, None]
    angle = torch.zeros(1, channels, width), torch.ones(1, channels, width)
    one = "x" in inspect.signature(turn).parameters  # Gemma 4 turns queries and keys one by one
    image: Tensor = (turn(unit, *angle) if one else turn(unit, unit, *angle)[0])[0, 0]
    return image
