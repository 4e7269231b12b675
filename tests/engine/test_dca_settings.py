"""When Dual Chunk Attention is on, and what is refused: the fact, the numbers, the next move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import Engine, Recipe
from octavo.errors import InvalidFile, InvalidRequest, OctavoError, PromptTooLong, UnsupportedModel
from octavo.recipe import RecipeFile
from octavo.recipe.dca import resolve_dca
from tests.engine.helpers import greedy, random_tokens
from tests.engine.test_dca import gap, scored
from tests.tiny import tiny_loaded

TRAINED = 256


def make(context: int | None = None, family: str = "llama", memory: str = "16MB", **recipe: Any) -> Engine:
    """A model trained on 256 tokens."""
    loaded = tiny_loaded(family, max_position_embeddings=TRAINED)
    return Engine(loaded, Recipe("plain", "plain", **recipe), memory=memory, context=context)


def test_auto_is_on_exactly_beyond_the_trained_length() -> None:
    for context in (None, 2, TRAINED - 1, TRAINED):
        engine = make(context)
        assert engine.dca is None and engine.stats().dca is None
        assert engine.context == (context or TRAINED)
    engine = make(TRAINED + 1)
    assert engine.context == TRAINED + 1 and engine.dca is not None
    assert engine.dca.as_dict() == {
        "chunk": 64, "mscale": 1.0, "trained": 256,
        "reason": "the context of 257 exceeds the 256 tokens trained",
    }  # fmt: skip
    assert str(engine.dca) == (
        "Dual Chunk Attention in chunks of 64 tokens: the context of 257 exceeds the 256 tokens trained"
    )


def test_pages_of_other_chunk_lengths_have_other_keys() -> None:
    made = [make(), make(TRAINED + 1), make(dca="on"), make(dca="on", dca_chunk=128)]
    assert len({engine._core.memory.ledger.root for engine in made}) == 4


def test_on_is_on_at_any_length_and_the_pool_bounds_it() -> None:
    engine = make(dca="on", dca_mscale=1.5)
    assert str(engine.dca) == "Dual Chunk Attention in chunks of 64 tokens, mscale 1.5: asked for"
    assert engine.context == engine._core.memory.capacity > TRAINED
    assert make(100, dca="on").context == 100
    assert make(1000, dca="on", dca_chunk=128).dca.chunk == 128  # type: ignore[union-attr]


def test_a_quarter_of_the_trained_length_is_whole_pages() -> None:
    for trained, chunk in ((128, 64), (255, 64), (256, 64), (1000, 192), (8192, 2048)):
        found = resolve_dca(Recipe(dca="on"), trained, None)
        assert found is not None and found.chunk == chunk


@pytest.mark.parametrize(
    ("settings", "context", "said"),
    [
        ({"dca": "on", "dca_chunk": 192}, None, r"dca_chunk is 192; twice that .* 256, so take .* up to 128"),
        ({"dca_chunk": 192}, 300, "dca_chunk is 192"),
        ({"dca": "off"}, 257, "trained for 256 tokens; take 2 to 256, or let dca be auto or on"),
        ({"dca": "on"}, 10**6, r"context is 1000000; the pool holds \d+ tokens, .* or raise --memory"),
        ({}, 10**6, r"context is 1000000; the pool holds \d+ tokens"),
        ({"dca": "on"}, 1, "context is 1;"),
    ],
)
def test_engines_that_cannot_be(settings: dict[str, Any], context: int | None, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make(context, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dca_chunk": 100}, "dca_chunk is 100; it must be a multiple of 64"),
        ({"dca_chunk": -64}, "dca_chunk is -64"),
        ({"dca_mscale": -1.0}, "dca_mscale is -1.0"),
        ({"dca_mscale": 0.0}, "dca_mscale is 0.0"),
        ({"dca_mscale": float("nan")}, "dca_mscale is nan"),
        ({"dca_mscale": float("inf")}, "dca_mscale is inf"),
        ({"dca": "always"}, "unknown dca 'always'; known: auto, off, on"),
        ({"dca": "atuo"}, "did you mean 'auto'"),
        ({"dca": True}, "dca is True; it is of type str"),
    ],
)
def test_recipes_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(OctavoError, match=said):
        Recipe(**settings)


def test_a_model_trained_on_less_than_two_pages_has_no_chunks() -> None:
    with pytest.raises(InvalidRequest, match="at least 128"):
        resolve_dca(Recipe(dca="on"), 100, None)


@pytest.mark.parametrize("context", [None, 300])
def test_models_without_layers_to_turn_are_refused(context: int | None) -> None:
    loaded = tiny_loaded("smollm3", no_rope_layers=[0] * 4, max_position_embeddings=TRAINED)
    with pytest.raises(UnsupportedModel, match="no full-attention layer of this model turns its keys"):
        Engine(
            loaded,
            Recipe("plain", "plain", dca="on" if context is None else "auto"),
            memory="16MB",
            context=context,
        )


def test_a_rope_that_is_not_understood_is_refused() -> None:
    """A rotary whose frequencies are not the layers': keys differ from the model's own by far."""
    loaded = tiny_loaded("llama", max_position_embeddings=TRAINED)
    rotary = loaded.module.model.rotary_emb  # type: ignore[union-attr]
    whole = type(rotary).forward

    class Other(type(rotary)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
            own = (
                position_ids if x.shape[-1] > 1 else position_ids * 1.5
            )  # asked alone it says something else
            return whole(self, x, own)

    rotary.__class__ = Other
    with pytest.raises(
        UnsupportedModel, match=r"RoPE of LlamaForCausalLM is not understood.*serve it with dca off"
    ):
        Engine(loaded, Recipe("plain", "plain", dca="on"), memory="16MB")


def test_requests_end_at_the_context() -> None:
    engine = make(300)
    (answer,) = engine.generate([random_tokens(250)], greedy(500))
    assert answer.finish == "length" and answer.usage.prompt_tokens + len(answer.tokens) == 300
    with pytest.raises(PromptTooLong, match="a sequence holds at most 300"):
        engine.submit(random_tokens(300))
    with pytest.raises(PromptTooLong, match=r"raise the context beyond what was trained \(see dca\)"):
        make().submit(random_tokens(300))


def test_where_the_pool_is_the_bound_it_is_named() -> None:
    """Without a context asked for it is what the pool holds, so a larger context is no help."""
    engine = make(dca="on", memory="3MB")
    for tokens in (engine.context + 1, 4000):
        with pytest.raises(PromptTooLong, match=f"the whole pool holds {engine.context}; raise --memory"):
            engine.submit(random_tokens(tokens))


def test_a_recipe_file_carries_it(tmp_path: Path) -> None:
    recipe = Recipe("q8_0", "q4_0", dca="on", dca_chunk=128, dca_mscale=1.25)
    RecipeFile(recipe).write(tmp_path / "r.toml")
    assert Recipe.load(tmp_path / "r.toml") == recipe
    text = (tmp_path / "r.toml").read_text()
    for wrong in ('dca_chunk = "128"', "dca_chunk = 100", "dca_mscale = nan"):
        name = wrong.split(" =")[0]
        lines = [wrong if line.startswith(f"{name} =") else line for line in text.splitlines()]
        (tmp_path / "w.toml").write_text("\n".join(lines))
        with pytest.raises((InvalidRequest, InvalidFile), match=name):
            Recipe.load(tmp_path / "w.toml")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_ropes_that_depend_on_length_stay_those_of_the_trained_length(kind: str) -> None:
    """Far beyond it, the first 2c tokens are read as by an engine within it."""
    factors = {"short_factor": [1.0] * 32, "long_factor": [1.0 + n / 8 for n in range(32)]}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        rope |= factors | {"original_max_position_embeddings": 128}  # type: ignore[arg-type]
    tokens = random_tokens(700)
    found = {}
    for context in (TRAINED, 700):
        loaded = tiny_loaded("llama", max_position_embeddings=TRAINED, rope_parameters=rope)
        recipe = Recipe("plain", "plain", dca_chunk=TRAINED // 2)
        engine = Engine(loaded, recipe, memory="16MB", context=context)
        found[context] = scored(engine, tokens[:context], 100)
    assert gap(found[TRAINED], found[700][:TRAINED]) < 3e-4
    assert torch.isfinite(found[700]).all()
