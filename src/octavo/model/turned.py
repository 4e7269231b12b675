"""Which layers turn their keys by RoPE, before any weight is loaded: a skeleton without memory runs once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from octavo.model.describe import modelling, text_config
from octavo.model.quiet import quiet
from octavo.model.source import resolve

__all__ = ["turned_layers"]

_NAME = "octavo-skeleton"


def turned_layers(model: str | Path) -> frozenset[int] | None:
    """Layers of `model` whose keys are turned; None where its code cannot run without weights."""
    config = AutoConfig.from_pretrained(str(resolve(model)))
    text = text_config(config)
    code: Any = modelling(text) or modelling(config)
    turn = getattr(code, "apply_rotary_pos_emb", None)
    if turn is None:
        return None
    found: set[int] = set()
    turns = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal turns
        turns += 1
        return turn(*args, **kwargs)

    def attend(module: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        nonlocal turns
        if turns:
            found.add(module.layer_idx)
        turns = 0
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1).transpose(1, 2), None

    AttentionInterface.register(_NAME, attend)
    code.apply_rotary_pos_emb = counted
    try:
        with torch.device("meta"), torch.inference_mode(), quiet():
            skeleton = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            skeleton.set_attn_implementation(_NAME)
            one = torch.ones(1, 1, dtype=torch.long)
            skeleton(input_ids=one, position_ids=one, use_cache=False)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None  # code that looks at numbers cannot run without them
    finally:
        code.apply_rotary_pos_emb = turn
    return frozenset(found)
