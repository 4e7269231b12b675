"""Rotary frequencies: how far they were trained, and holding them still for one engine.

Two kinds depend on the length of the text at hand: `dynamic` (NTK) and `longrope`. One long request would
change the frequencies under everybody's cached keys, so they are computed once, for the engine's context.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

__all__ = ["LENGTH_DEPENDENT", "fix_rope", "rope_settings", "trained_context"]

LENGTH_DEPENDENT = ("dynamic", "longrope")
_FIXED = "default"  # the kind under which Transformers leaves a rotary's frequencies alone

Settings = dict[str, Any]


def rope_settings(text: Any) -> dict[str | None, Settings]:
    """RoPE parameters by layer type; the key is None where all layers share one set."""
    settings = getattr(text, "rope_parameters", None) or {}
    if settings and all(isinstance(value, dict) for value in settings.values()):
        return dict(settings)
    return {None: settings} if settings else {}


def trained_context(text: Any) -> int:
    """Tokens the model was trained, or scaled, to read.

    YaRN configurations may keep the unscaled length in `max_position_embeddings`; the others do not.
    """
    reach = [int(text.max_position_embeddings)]
    for settings in rope_settings(text).values():
        original = settings.get("original_max_position_embeddings")
        if settings.get("rope_type") == "yarn" and original:
            reach.append(int(original * settings.get("factor", 1)))
    return max(reach)


def fix_rope(module: nn.Module, context: int) -> tuple[str, ...]:
    """Length-dependent frequencies of `module` are those for `context` tokens from now on.

    Returns one sentence for each rotary that was fixed, none where nothing depends on length. May be called
    again with another context while no cached key is alive.
    """
    notes = []
    for rotary in module.modules():
        for layer_type, settings in _length_dependent(rotary):
            notes.append(_fix(rotary, layer_type, settings, context))
    return tuple(notes)


def _length_dependent(rotary: nn.Module) -> Iterator[tuple[str | None, Settings]]:
    if not hasattr(rotary, "rope_type"):
        return
    for layer_type, settings in rope_settings(rotary.config).items():
        if settings.get("rope_type") in LENGTH_DEPENDENT:
            yield layer_type, settings


def _fix(rotary: Any, layer_type: str | None, settings: Settings, context: int) -> str:
    kind = settings["rope_type"]
    prefix = f"{layer_type}_" if layer_type else ""
    old = getattr(rotary, f"{prefix}inv_freq")
    where = {"layer_type": layer_type} if layer_type else {}
    new, scaling = ROPE_INIT_FUNCTIONS[kind](rotary.config, old.device, seq_len=context, **where)
    rotary.register_buffer(f"{prefix}inv_freq", new.to(old), persistent=False)
    setattr(rotary, f"{prefix}attention_scaling", scaling)
    if layer_type:
        rotary.rope_type[layer_type] = _FIXED
    else:
        rotary.rope_type = _FIXED
    return _note(kind, rotary.config, settings, context)


def _note(kind: str, config: Any, settings: Settings, context: int) -> str:
    if kind == "longrope":
        limit = settings["original_max_position_embeddings"]
        choice = "long" if context > limit else "short"
        reach = "more than" if context > limit else "at most"
        return f"RoPE fixed to longrope's {choice} factors: a context of {context} is {reach} {limit} tokens"
    limit = config.max_position_embeddings
    if context <= limit:
        return f"RoPE fixed to its unscaled frequencies: a context of {context} is at most {limit} tokens"
    return f"RoPE fixed to dynamic scaling for a context of {context} tokens, trained on {limit}"
