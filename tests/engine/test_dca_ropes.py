"""Every kind of RoPE under Dual Chunk Attention, and families that pair or scale channels their own way."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import Engine, Recipe
from octavo.errors import UnsupportedModel
from tests.engine.helpers import logits_of, random_tokens
from tests.engine.slow_dca import slow_logits
from tests.engine.test_dca import gap, scored
from tests.engine.test_exact import FLOOR, TIMES
from tests.tiny import FAMILIES, tiny, tiny_loaded

TOKENS = random_tokens(330, 6)
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 70}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("llama", {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}),
    "dynamic": ("llama", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    "yarn": ("llama", {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024,
    }),
    "llama3": ("llama", {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 512,
    }),
    "longrope": ("llama", {
        "rope_type": "longrope", "rope_theta": 1e4, "factor": 32.0, "original_max_position_embeddings": 128,
        "short_factor": [1.0] * 32, "long_factor": [1.0 + n / 8 for n in range(32)],
    }),
    "yarn, interleaved": ("glm4", {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024,
        "partial_rotary_factor": 0.5,
    }),
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "olmo3": ALTERNATING,  # norms of whole projections
    "gemma4": {  # full layers have wider heads
        **ALTERNATING, "global_head_dim": 128, "num_global_key_value_heads": 2,
        "vocab_size_per_layer_input": 264, "hidden_size_per_layer_input": 16,
    },
    "phi": {"partial_rotary_factor": 0.5},  # turns the first channels only, cut off before
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 32},
    "ernie4_5": {},  # interleaved
    "exaone4": {"layer_types": ["full_attention"] * 2, "sliding_window": None},
}  # fmt: skip


def engine_of(family: str, c: int, **overrides: Any) -> Engine:
    loaded = tiny_loaded(family, **overrides)
    return Engine(loaded, Recipe("plain", "plain", dca="on", dca_chunk=c), memory="32MB", context=4096)


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_rope(name: str) -> None:
    family, rope = KINDS[name]
    exact, rounded = (slow_logits(family, TOKENS, 64, exact=e, rope_parameters=rope) for e in (True, False))
    found = scored(engine_of(family, 64, rope_parameters=rope), TOKENS, 100)
    assert gap(found, exact) <= TIMES * max(FLOOR, gap(exact, rounded))


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_within_two_chunks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against Transformers; c = 64 is wrong by far, so the bands were read."""
    monkeypatch.setitem(FAMILIES, family, OTHERS[family])
    monkeypatch.setitem(tiny.__globals__["_MODEL_TYPES"], "gemma4", "gemma4_text")
    eager = logits_of(tiny(family), TOKENS)
    assert gap(scored(engine_of(family, 192), TOKENS, 100), eager) <= 3e-4
    assert gap(scored(engine_of(family, 64), TOKENS, 100), eager) > 0.1


@pytest.mark.parametrize("family", ["cohere2", "exaone4"])
def test_families_whose_full_layers_have_no_rope_are_refused(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, family, ALTERNATING)
    with pytest.raises(UnsupportedModel, match="no full-attention layer of this model turns its keys"):
        engine_of(family, 64)
