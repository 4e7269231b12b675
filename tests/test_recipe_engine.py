"""Recipes in the engine: layers with their own formats, and scales that leave scores as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from octavo import Recipe
from octavo.cli.info import cache_bytes
from octavo.evaluation.sizes import bits_per_value
from octavo.model.describe import modelling
from octavo.model.load import shape_of
from octavo.model.pairs import rope_partners
from octavo.recipe import Scales
from tests.engine.helpers import PLAIN, random_tokens, tiny_engine
from tests.tiny import FAMILIES, tiny_config, tiny_loaded

MIXED = Recipe("q8_0", "q4_0", recent=0, exact_pages=0, layers="1=plain:turbo3")


def strong(family: str, seed: int = 0) -> Scales:
    """Scales between 1/4 and 4 for every layer of a tiny model."""
    generator = torch.Generator().manual_seed(seed)
    layers = tiny_loaded(family).shape.layers
    draw = [torch.rand(x.kv_heads, x.head_dim, generator=generator) for x in layers]
    return Scales({n: 4 ** (2 * values - 1) for n, values in enumerate(draw)}, "ratio")


def hidden(family: str, recipe: Recipe, tokens: list[int], **settings: Any) -> torch.Tensor:
    with tiny_engine(family, recipe, **settings) as engine:
        return torch.cat([part for _, part in engine.score(tokens, chunk=64)])


# layers


def test_each_layer_packs_in_its_own_formats() -> None:
    with tiny_engine("llama", MIXED) as engine:
        (store,) = engine._core.memory.stores
        assert [c.format.name for c in store.codecs["k"]] == ["q8_0", "plain"]
        assert [c.format.name for c in store.codecs["v"]] == ["q4_0", "turbo3"]
        assert [turn is not None for turn in store.rotations["k"]] == [True, False]
        assert store.packed_bytes == sum(store.layer_bytes) and len(set(store.layer_bytes)) == 2
        (pool,) = engine._core.memory.pools
        for side in ("k", "v"):
            assert [x.shape[-1] for x in pool.packed[side]] == [c.nbytes for c in store.codecs[side]]


def test_a_layer_in_other_formats_is_as_if_all_were() -> None:
    """One layer's error does not depend on the formats of later layers; the last layer's does on its own."""
    tokens = random_tokens(200)
    both = hidden("llama", Recipe("q4_0", "q4_0", recent=0, exact_pages=0), tokens)
    told = hidden("llama", Recipe("q8_0", "q8_0", recent=0, exact_pages=0, layers="0-1=q4_0"), tokens)
    assert torch.equal(both, told)
    first = hidden("llama", Recipe("plain", "plain", recent=0, exact_pages=0, layers="0=q4_0"), tokens)
    plain = hidden("llama", PLAIN, tokens)
    assert not torch.equal(first, plain) and not torch.equal(first, both)
    assert (first - plain).norm() < (both - plain).norm()


def test_plain_layers_among_packed_ones_lose_nothing() -> None:
    tokens = random_tokens(200)
    found = hidden("llama", Recipe("q4_0", "q4_0", recent=0, exact_pages=0, layers="0-1=plain"), tokens)
    assert torch.equal(found, hidden("llama", PLAIN, tokens))


def test_bytes_of_mixed_layers_agree_with_the_pool() -> None:
    loaded = tiny_loaded("llama")
    with tiny_engine("llama", MIXED) as engine, engine.document(random_tokens(500)) as document:
        told, further = cache_bytes(loaded.shape, MIXED, document.tokens)
        assert engine.stats().bytes["live"] == told
    values = 2 * 2 * 2 * 64  # sides, layers, KV heads, channels
    assert bits_per_value(MIXED, loaded.shape) == pytest.approx(8 * further / values)


def test_pages_of_other_recipes_have_other_keys() -> None:
    scaled = [MIXED.with_(scales=strong("llama", seed)) for seed in (0, 1)]
    recipes = [MIXED, MIXED.with_(layers=""), *scaled]
    roots = []
    for recipe in recipes:
        with tiny_engine("llama", recipe) as engine:
            roots.append(engine._core.memory.ledger.root)
    assert len(set(roots)) == len(recipes)


# scales


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "glm4"])
@pytest.mark.parametrize("rotate", [True, False])
def test_scales_change_no_score(family: str, rotate: bool) -> None:
    """Every page stays plain, but equalised and rotated: what is left is the rounding of float32."""
    tokens = random_tokens(150)
    kept = Recipe("q8_0", "q8_0", exact_pages=4, rotate=rotate, sliding=True)
    plain = hidden(family, PLAIN, tokens)
    scaled = hidden(family, kept.with_(scales=strong(family)), tokens)
    noise = (hidden(family, kept.with_(rotate=True), tokens) - plain).abs().max()
    gap = (scaled - plain).abs().max()
    assert 0 < gap < 4 * noise + 1e-5 * plain.abs().max()


def test_scales_reach_the_pages() -> None:
    """Stored keys are the model's times s, plain pages too, and the plain format's are untouched."""
    tokens, scales = random_tokens(40), strong("llama")

    def keys(recipe: Recipe) -> torch.Tensor:
        with tiny_engine("llama", recipe) as engine, engine.document(tokens):
            (pool,) = engine._core.memory.pools
            slots = pool.k_plain[:, : pool.spare].flatten(2).any(-1).any(0)
            return pool.k_plain[:, : pool.spare][:, slots][:, 0, :, :40]

    q8 = Recipe("q8_0", "q8_0", rotate=False)
    s = torch.stack([scales.of(n) for n in range(2)])  # type: ignore[misc]
    own, scaled = keys(q8), keys(q8.with_(scales=scales))
    assert torch.allclose(scaled[0], own[0] * s[0][:, None], rtol=1e-5)
    assert torch.allclose(scaled[1], own[1] * s[1][:, None], rtol=1e-3, atol=1e-3)
    plain = Recipe("plain", "q8_0", rotate=False)
    assert torch.equal(keys(plain.with_(scales=scales)), keys(plain))


def test_scales_matter_once_keys_are_quantised() -> None:
    tokens = random_tokens(200)
    q4 = Recipe("q4_0", "plain", recent=0, exact_pages=0)
    scaled = q4.with_(scales=strong("llama"))
    assert (hidden("llama", q4, tokens) - hidden("llama", scaled, tokens)).abs().max() > 1e-3
    exact = hidden("llama", PLAIN, tokens, all_quantised=True)
    assert (exact - hidden("llama", scaled, tokens, all_quantised=True)).abs().max() > 1e-3


# pairs


OTHERS = ("cohere2", "ernie4_5", "glm", "glm4_moe", "nemotron", "phi", "minimax_m2", "gemma4_text")
SIZES = {
    name: getattr(tiny_config("llama"), name)
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "num_key_value_heads", "head_dim", "max_position_embeddings", "pad_token_id")
}  # fmt: skip


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_scales_equal_in_pairs_commute_with_rope(family: str) -> None:
    config = tiny_config(family) if family in FAMILIES else AutoConfig.for_model(family, **SIZES)
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    shape = shape_of(module.config)
    found = rope_partners(module, shape)
    generator = torch.Generator().manual_seed(0)
    for kind, layer, partner in zip(kinds(module, len(found)), shape.layers, found, strict=True):
        assert torch.equal(partner[partner], torch.arange(layer.head_dim))
        x = torch.randn(1, 2, 5, layer.head_dim, generator=generator)
        s = 0.5 + torch.rand(layer.head_dim, generator=generator)
        equal = (s + s[partner]) / 2
        assert torch.allclose(rope(module, x * equal, kind), rope(module, x, kind) * equal, atol=1e-5)
        assert not torch.allclose(rope(module, x * s, kind), rope(module, x, kind) * s, atol=1e-2)


def kinds(module: Any, layers: int) -> list[str]:
    return list(getattr(module.config, "layer_types", None) or ["full_attention"] * layers)


def rope(module: Any, x: torch.Tensor, kind: str) -> torch.Tensor:
    """x [1, heads, T, D] turned by the model's own code at positions 7, 8, ..."""
    code, rotary = modelling(module.config), module.model.rotary_emb
    positions = torch.arange(7, 7 + x.shape[2])[None]
    typed = module.config.model_type in ("gemma3_text", "gemma4_text")
    cos, sin = rotary(x, positions, kind) if typed else rotary(x, positions)
    if module.config.model_type == "gemma4_text":
        return code.apply_rotary_pos_emb(x, cos, sin)  # type: ignore[no-any-return,union-attr]
    if module.config.model_type == "phi":
        n = cos.shape[-1]
        return torch.cat((code.apply_rotary_pos_emb(x[..., :n], x[..., :n], cos, sin)[0], x[..., n:]), -1)  # type: ignore[union-attr]
    return code.apply_rotary_pos_emb(x, x, cos, sin)[0]  # type: ignore[no-any-return,union-attr]
