"""What pages cannot hold is refused by its configuration, with fact and number."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from octavo.errors import UnsupportedModel
from octavo.model.describe import modelling
from octavo.model.refuse import COMPARED, hands_on, refuse, why_not
from tests.tiny import FAMILIES, tiny_config

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("deepseek_v2", {}, r"latent attention \(MLA\).* 512 \+ 64 values"),
    ("deepseek_v3", {}, r"latent attention \(MLA\).* 512 \+ 64 values"),
    ("deepseek_v32", {}, r"MLA"),
    ("deepseek_v4", {}, r"512 tokens through an index of their own \(DSA\)"),
    ("llama4_text", {}, r"of 48 layers 36 are chunked_attention; .* 8192-token border"),
    ("qwen3_next", {}, r"of 48 layers 36 are linear_attention; .* state per sequence"),
    ("qwen3_5_text", {}, r"linear_attention"),
    ("jamba", {}, r"linear_attention"),
    ("mamba", {}, r"linear_attention"),
    ("lfm2", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, r"of 2 layers 1 are conv"),
    ("rwkv", {}, r"recurrent state"),
    ("falcon", {}, r"FalconForCausalLM does not offer"),
    ("bloom", {}, r"does not offer Transformers' attention interface"),
    ("mpt", {}, r"does not offer"),
    ("nemotron", {}, r"hand no keyword arguments on to their attention"),
    ("gpt_neo", {}, r"does not offer"),
    ("bart", {}, r"encoder beside its decoder"),
    ("t5", {}, r"encoder beside its decoder"),
    ("bert", {}, r"later tokens too"),
    ("vit", {}, r"no causal language model"),
    ("llava", {}, r"composite of text and vision.*text part alone \(llama\)"),
    ("qwen2_5_vl", {}, r"composite of text and vision"),
    ("gemma3n_text", {}, r"15 of its 35 layers read another layer's keys"),
    ("diffllama", {}, r"attends twice"),
    ("mimo_v2_flash", {}, r"keys of 192 and values of 128"),
    (
        "llama",
        {"hidden_size": 60, "num_attention_heads": 5},
        r"layer 0 has a head_dim of 12, .*multiples of 8",
    ),
    ("llama", {"head_dim": 1024}, r"head_dim of 1024"),
    ("llama", {"num_key_value_heads": 3}, r"32 query heads over 3 KV heads"),
]


@pytest.mark.parametrize(("family", "settings", "reason"), REFUSED)
def test_refused_with_the_reason(family: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^{family}.* cannot be served: .*{reason}"):
        refuse(AutoConfig.for_model(family, **settings))


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_families_pass(family: str) -> None:
    assert why_not(tiny_config(family)) is None


@pytest.mark.parametrize("family", COMPARED)
def test_compared_families_hand_keywords_on(family: str) -> None:
    text = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}.get(family, family)
    assert hands_on(modelling(AutoConfig.for_model(text)))


@pytest.mark.parametrize(
    "family", ["gemma3", "gemma4_text", "olmo3", "cohere2", "exaone4", "gpt2", "mixtral"]
)
def test_others_pass_too(family: str) -> None:
    assert why_not(AutoConfig.for_model(family)) is None


def test_unknown_rope_is_refused() -> None:
    config = tiny_config("llama")
    config.rope_parameters["rope_type"] = "spiral"
    assert "RoPE is of kind 'spiral'" in str(why_not(config))
