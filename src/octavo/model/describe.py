"""A Transformers configuration becomes a ModelShape, before any weight is loaded."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import cache
from types import ModuleType
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from octavo.model.shape import LayerShape, ModelShape

__all__ = ["modelling", "shape_of", "text_config"]

SLIDING = "sliding_attention"


def text_config(config: Any) -> Any:
    """The part of a (possibly composite) configuration that describes the causal LM."""
    return config.get_text_config(decoder=True)


@cache
def _modelling(config_class: Hashable) -> ModuleType | None:
    if config_class not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    return sys.modules[model_class.__module__]


def modelling(config: Any) -> ModuleType | None:
    """The Transformers module that implements the causal LM of `config`; None where there is none."""
    return _modelling(type(config))


def shape_of(
    config: Any, *, dtype: str | None = None, parameters: int = 0, notes: tuple[str, ...] = ()
) -> ModelShape:
    """The shape of a supported causal LM, from its configuration alone.

    `dtype` is the torch dtype's name the weights will run in; by default the one the configuration names.
    """
    text = text_config(config)
    layers = tuple(_layer(text, index) for index in range(text.num_hidden_layers))
    return ModelShape(
        architecture=text.model_type.removesuffix("_text"),
        layers=layers,
        hidden=text.hidden_size,
        vocab=text.vocab_size,
        context=text.max_position_embeddings,
        dtype=dtype or _dtype_name(config) or _dtype_name(text) or "float32",
        parameters=parameters,
        notes=notes,
    )


def _dtype_name(config: Any) -> str | None:
    dtype = getattr(config, "dtype", None)
    return str(dtype).removeprefix("torch.") if dtype is not None else None


def _layer(text: Any, index: int) -> LayerShape:
    q_heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or q_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // q_heads
    return LayerShape(index, q_heads, kv_heads, head_dim, _window(text, index))


def _window(text: Any, index: int) -> int | None:
    """Tokens that layer `index` sees, the query itself included.

    Transformers' sliding mask keeps key j for query i when j > i - sliding_window: the query counts.
    Families with `layer_types` slide where the list says so; the older ones (mistral, phi3, qwen3_moe)
    slide everywhere or nowhere, and only where their code builds the sliding mask.
    """
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if not window:
        return None
    slides = kinds[index] == SLIDING if kinds else _can_slide(text)
    return int(window) if slides else None


def _can_slide(text: Any) -> bool:
    return hasattr(modelling(text), "create_sliding_window_causal_mask")
