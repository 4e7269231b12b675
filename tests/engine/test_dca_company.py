"""Dual Chunk Attention beside packed pages and other engines on the same model, and its own counts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo import Engine, Recipe
from octavo.attention import backend
from octavo.errors import EngineStopped, OctavoError
from octavo.pages.bands import Turns
from octavo.recipe import Scales
from tests.engine.helpers import greedy, random_tokens, recorded, tiny_engine
from tests.engine.slow_dca import slow_logits
from tests.engine.test_dca import dual, gap, right, scored
from tests.tiny import tiny_loaded

TOKENS = tuple(random_tokens(400, 5))


def divergence(family: str, recipe: Recipe, chunk: int = 64, **settings: Any) -> float:
    """Mean KL divergence, in nats, of a recipe's predictions from those of plain pages, `dca` alike."""
    plain = recipe.with_(k="plain", v="plain", scales=None)
    p, q = (
        scored(tiny_engine(family, each, **settings), TOKENS, chunk).double().log_softmax(-1)
        for each in (plain, recipe)
    )
    return float((p.exp() * (p - q)).sum(-1).mean())


def strong(family: str) -> Scales:
    """Scales between 1/4 and 4 for every layer."""
    generator = torch.Generator().manual_seed(3)
    layers = tiny_loaded(family).shape.layers
    draw = [torch.rand(x.kv_heads, x.head_dim, generator=generator) for x in layers]
    return Scales({n: 4 ** (2 * values - 1) for n, values in enumerate(draw)}, "ratio")


# packed pages


PACKED: dict[str, tuple[str, Recipe, dict[str, Any]]] = {
    "q8_0:q4_0": ("llama", Recipe("q8_0", "q4_0", recent=0), {}),
    "turbo3": ("llama", Recipe("turbo3", "turbo3", recent=0), {}),
    "not rotated, nothing exact": (
        "llama",
        Recipe("q8_0", "q8_0", recent=0, rotate=False, exact_pages=0),
        {},
    ),
    "layers of their own": ("llama", Recipe("q8_0", "q8_0", recent=0, layers="1=plain:turbo3"), {}),
    "scales": ("llama", Recipe("q8_0", "q8_0", recent=0, scales=strong("llama")), {}),
    "all quantised": ("llama", Recipe("q8_0", "q4_0"), {"all_quantised": True}),
    "all quantised, scales": ("glm4", Recipe("q8_0", "q4_0", scales=strong("glm4")), {"all_quantised": True}),
    "windows too": ("gemma3", Recipe("q8_0", "q4_0", recent=0, sliding=True), {}),
    "sinks": ("gpt_oss", Recipe("q8_0", "q8_0", recent=0), {}),
    "layers without RoPE": ("smollm3", Recipe("q8_0", "q4_0", recent=0), {}),
}


@pytest.mark.parametrize("name", PACKED)
def test_formats_cost_what_they_cost_without(name: str) -> None:
    family, recipe, settings = PACKED[name]
    alone = divergence(family, recipe.with_(dca="off"), **settings)
    under = divergence(family, recipe.with_(dca="on", dca_chunk=64), **settings)
    assert 0 < under < 2 * alone


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma3", "glm4"])
def test_16_bit_models(family: str, dtype: torch.dtype) -> None:
    loaded = tiny_loaded(family)
    loaded.module.to(dtype)
    object.__setattr__(loaded.shape, "dtype", str(dtype).removeprefix("torch."))
    found = {}
    for c in (64, 2048):
        recipe = Recipe("plain", "plain", dca="on", dca_chunk=c)
        p = right(family, TOKENS, c)[0].double().log_softmax(-1)
        q = scored(Engine(loaded, recipe, memory="16MB"), TOKENS, 100).double().log_softmax(-1)
        found[c] = float((p.exp() * (p - q)).sum(-1).mean())
    assert found[64] < 2 * found[2048]


# others


def test_engines_on_one_model_take_turns() -> None:
    """Chunks of 64, of 128, and none: step by step in alternation, each gives its own answers."""
    loaded = tiny_loaded("gemma3")
    settings: list[dict[str, Any]] = [
        {"dca": "on", "dca_chunk": 64},
        {"dca": "off"},
        {"dca": "on", "dca_chunk": 128},
    ]
    engines = [Engine(loaded, Recipe("plain", "plain", **each), memory="16MB", chunk=90) for each in settings]
    prompt, found = random_tokens(420, 1), {}
    with ExitStack() as stack:
        rows = [stack.enter_context(recorded(engine)) for engine in engines]
        for engine in engines:
            engine.submit(prompt, greedy(6))
        while not all(engine.idle for engine in engines):
            for n, engine in enumerate(engines):
                found.update({n: [*found.get(n, []), *(t for d in engine.step() for t in d.tokens)]})
    for n, c in enumerate((64, 2048, 128)):  # within 2c nothing changes
        [own] = rows[n].values()
        exact, most = right("gemma3", (*prompt, *found[n]), c)
        assert len(found[n]) == 6 and gap(torch.stack(own), exact[len(prompt) - 1 : -1]) <= most
    assert engines[1].stats().dca is None


def test_rows_read_again_from_shared_pages() -> None:
    engine = dual("llama", 64)
    exact, most = right("llama", TOKENS, 64)
    for _ in range(2):
        parts = list(engine.score(TOKENS, chunk=100, wanted=330))
        start, hidden = parts[-1]
        assert gap(engine.head(hidden), exact[start:]) <= most
    assert parts[0][0] == 320
    assert engine.stats().dca["rows"] == {"intra": 480, "succ": 416, "inter": 352}  # type: ignore[index]


# counts


def test_rows_are_counted_by_band() -> None:
    engine = dual("gemma3", 64)
    assert engine.stats().dca == {
        "chunk": 64, "mscale": 1.0, "trained": 4096, "reason": "asked for", "layers": [2],
        "rows": {"intra": 0, "succ": 0, "inter": 0},
    }  # fmt: skip
    engine.generate([random_tokens(200), random_tokens(60)], greedy(9))
    # the last token is sampled, not run
    assert engine.stats().dca["rows"] == {"intra": 208 + 68, "succ": 144 + 4, "inter": 80}  # type: ignore[index]


def skipping(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Of the two layers, the one at `place` takes its queries as they come."""
    calls, turn = [0], backend.band_queries

    def sometimes(q: Tensor, turns: Turns) -> Tensor:
        calls[0] += 1
        return q.repeat(turns.bands, 1, 1) if calls[0] % 2 == place else turn(q, turns)

    monkeypatch.setattr(backend, "band_queries", sometimes)


@pytest.mark.parametrize("place", [0, 1])
def test_a_layer_that_does_not_turn_is_told(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = dual("llama", 64)
    skipping(monkeypatch, place)
    scored(engine, TOKENS[:64], 64)
    assert engine.stats().dca["rows"]["succ"] == 0  # type: ignore[index]
    scored(engine, TOKENS[:65], 64)
    with pytest.raises(
        OctavoError, match=f"layer {1 - place} read the bands succ and inter for 0 and 0 rows, but 1"
    ):
        engine.stats()
    with pytest.raises(EngineStopped, match="Dual Chunk Attention was not active"):
        dual("llama", 64).generate([list(TOKENS)], greedy(1))


def test_the_slow_model_is_transformers_within_two_chunks() -> None:
    """What the tests hold the engine against, held against the model it was made of."""
    from tests.engine.helpers import transformers_logits

    tokens = random_tokens(128, 2)
    eager = transformers_logits("gpt_oss", tokens)
    assert gap(slow_logits("gpt_oss", tokens, 64, exact=False), eager) < 1e-4
    assert gap(slow_logits("gpt_oss", [*tokens, 7], 64, exact=False)[:-1], eager) < 1e-4
