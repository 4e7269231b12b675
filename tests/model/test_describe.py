"""Shapes read from configurations agree with what Transformers computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from octavo.model.describe import shape_of
from octavo.model.shape import LayerShape
from tests.tiny import FAMILIES, tiny, tiny_config

SLIDING: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 0},
    "qwen2_moe": {"use_sliding_window": True, "max_window_layers": 0, "layer_types": ["sliding_attention"]},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 0},
    "qwen3_moe": {"use_sliding_window": True},
    "gemma2": {"layer_types": ["sliding_attention"]},
    "gemma3": {"layer_types": ["sliding_attention"]},
    "mistral": {},
    "phi3": {},
    "gpt_oss": {"layer_types": ["sliding_attention"]},
    "smollm3": {"use_sliding_window": True, "no_rope_layers": [0]},
}


@pytest.mark.parametrize("family", SLIDING)
def test_a_window_counts_the_query_itself(family: str) -> None:
    """With one layer, a query sees its window's oldest token and not the one before."""
    settings = {**SLIDING[family], "num_hidden_layers": 1, "sliding_window": 10}
    model = tiny(family, **settings)
    window = shape_of(model.config).layers[0].window
    assert window == 10
    tokens = torch.arange(30)[None]

    def last(changed: int) -> torch.Tensor:
        other = tokens.clone()
        other[0, changed] = 200
        with torch.no_grad():
            return model(other, use_cache=False).logits[0, -1]  # type: ignore[no-any-return]

    with torch.no_grad():
        plain = model(tokens, use_cache=False).logits[0, -1]
    assert not torch.equal(last(30 - window), plain)
    assert torch.equal(last(30 - window - 1), plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_agree_with_the_modules(family: str) -> None:
    model = tiny(family)
    shape = shape_of(model.config)
    modules = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    assert len(modules) == len(shape.layers)
    for layer, module in zip(shape.layers, modules, strict=True):
        assert module.layer_idx == layer.index
        assert module.head_dim == layer.head_dim
        assert module.num_key_value_groups == layer.q_heads // layer.kv_heads


def test_a_stray_window_means_nothing_to_a_llama() -> None:
    config = tiny_config("llama", sliding_window=64)
    assert config.sliding_window == 64
    assert shape_of(config).layers[0].window is None


def test_layers_may_differ() -> None:
    """Gemma 4: full layers with another head_dim and other KV heads than sliding ones."""
    config = AutoConfig.for_model(
        "gemma4_text",
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        global_head_dim=128,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=512,
        num_kv_shared_layers=0,
    )
    shape = shape_of(config)
    assert shape.layers[0] == LayerShape(0, 4, 2, 64, 512)
    assert shape.layers[5] == LayerShape(5, 4, 1, 128, None)
    assert [g.name for g in shape.groups] == ["sliding", "full"]


def test_head_dim_is_derived_where_it_is_not_given() -> None:
    config = AutoConfig.for_model("phi3", hidden_size=384, num_attention_heads=4, num_key_value_heads=2)
    assert shape_of(config).layers[0].head_dim == 96
