"""A Transformers configuration becomes a ModelShape, before any weight is loaded."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import cache
from types import ModuleType
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from octavo.model.rope import trained_context
from octavo.model.shape import LayerShape, ModelShape

__all__ = ["layer_config", "layer_kinds", "modelling", "shape_of", "text_config"]

FULL, SLIDING = "full_attention", "sliding_attention"


def text_config(config: Any) -> Any:
    """The part of a (possibly composite) configuration that describes the causal LM."""
    return config.get_text_config(decoder=True)


def layer_config(text: Any, index: int) -> Any:
    """The configuration of one layer; families whose layers differ (Gemma 4) keep one for each."""
    return text.per_layer_config[index] if getattr(text, "is_heterogeneous", False) else text


@cache
def _modelling(config_class: Hashable) -> ModuleType | None:
    if config_class not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    return sys.modules[model_class.__module__]


def modelling(config: Any) -> ModuleType | None:
    """The Transformers module that implements the causal LM of `config`; None where there is none."""
    kind: Any = type(config)
    return _modelling(kind)


def layer_kinds(text: Any) -> list[str]:
    """What each layer is, in Transformers' words (`full_attention`, `sliding_attention`, `conv`, ...).

    Older families (mistral, phi3, qwen3_moe) have no list: they slide everywhere or nowhere, and only where
    their code builds the sliding mask; a stray `sliding_window` in a llama's configuration means nothing.
    """
    kinds = getattr(text, "layer_types", None)
    if kinds:
        return list(kinds)
    code = modelling(text)
    slides = getattr(text, "sliding_window", None) and hasattr(code, "create_sliding_window_causal_mask")
    return [SLIDING if slides else FULL] * (getattr(text, "num_hidden_layers", None) or 0)


def shape_of(
    config: Any, *, dtype: str | None = None, parameters: int = 0, notes: tuple[str, ...] = ()
) -> ModelShape:
    """The shape of a supported causal LM, from its configuration alone.

    `dtype` is the torch dtype's name the weights will run in; by default the one the configuration names.
    """
    text = text_config(config)
    kinds = layer_kinds(text)
    layers = tuple(_layer(layer_config(text, n), n, kinds[n]) for n in range(text.num_hidden_layers))
    return ModelShape(
        architecture=text.model_type.removesuffix("_text"),
        layers=layers,
        hidden=text.hidden_size,
        vocab=text.vocab_size,
        context=trained_context(text),
        dtype=dtype or _dtype_name(config) or _dtype_name(text) or "float32",
        parameters=parameters,
        notes=notes,
    )


def _dtype_name(config: Any) -> str | None:
    dtype = getattr(config, "dtype", None)
    return str(dtype).removeprefix("torch.") if dtype is not None else None


def _layer(layer: Any, index: int, kind: str) -> LayerShape:
    """One layer. Transformers' sliding mask keeps key j for query i when j > i - sliding_window, in every
    family: the query counts, as LayerShape.window wants it."""
    q_heads = layer.num_attention_heads
    kv_heads = getattr(layer, "num_key_value_heads", None) or q_heads
    head_dim = getattr(layer, "head_dim", None) or layer.hidden_size // q_heads
    return LayerShape(index, q_heads, kv_heads, head_dim, layer.sliding_window if kind == SLIDING else None)
