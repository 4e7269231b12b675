"""Length-dependent RoPE: fixed to what Transformers uses at the engine's context, and no longer moving."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from octavo.model.describe import shape_of
from octavo.model.rope import fix_rope
from tests.tiny import tiny, tiny_config

LONGROPE: dict[str, Any] = {
    "head_dim": 16,  # phi3 checks its factors against hidden / heads
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + n for n in range(8)],
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 1.0,
    },
}
DYNAMIC: dict[str, Any] = {
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
}


def logits(model: PreTrainedModel, length: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(length)[None] % 256, use_cache=False).logits[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("family", "settings", "context", "says"),
    [
        ("phi3", LONGROPE, 64, "short factors: a context of 64 is at most 64"),
        ("phi3", LONGROPE, 512, "long factors: a context of 512 is more than 64"),
        ("llama", DYNAMIC, 64, "unscaled"),
        ("llama", DYNAMIC, 200, "dynamic scaling for a context of 200 tokens, trained on 64"),
    ],
)
def test_fixed_as_at_the_context(family: str, settings: dict[str, Any], context: int, says: str) -> None:
    truth = logits(tiny(family, **settings), context)
    model = tiny(family, **settings)
    (note,) = fix_rope(model, context)
    assert says in note
    torch.testing.assert_close(logits(model, context), truth, atol=1e-5, rtol=0)
    before = logits(model, 20)
    logits(model, 500)  # a long request must not move anybody's frequencies
    assert torch.equal(logits(model, 20), before)
    assert torch.equal(logits(model, context)[:20].argmax(-1), before.argmax(-1))


def test_may_be_fixed_again() -> None:
    model = tiny("phi3", **LONGROPE)
    fix_rope(model, 512)
    (note,) = fix_rope(model, 64)
    assert "short" in note
    torch.testing.assert_close(logits(model, 60), logits(tiny("phi3", **LONGROPE), 60), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma3"])
def test_nothing_to_fix(family: str) -> None:
    assert fix_rope(tiny(family), 100) == ()


def test_context_of_scaled_models() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32768}
    assert shape_of(AutoConfig.for_model("qwen2", rope_parameters=yarn)).context == 131072
    assert shape_of(tiny_config("gpt_oss")).context == 4096
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = AutoConfig.for_model("llama", rope_parameters=llama3, max_position_embeddings=131072)
    assert shape_of(config).context == 131072
    assert shape_of(tiny_config("phi3", **LONGROPE)).context == 512
