"""Dual Chunk Attention: Transformers' logits within two chunks, those of a slow model beyond."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch

from octavo import Engine, Recipe
from octavo.errors import UnsupportedModel
from tests.engine.helpers import (
    audit_engine,
    greedy,
    live,
    random_tokens,
    recorded,
    tiny_engine,
    transformers_logits,
)
from tests.engine.slow_dca import slow_logits
from tests.engine.test_exact import FLOOR, TIMES, covering
from tests.tiny import FAMILIES

TURNING = [family for family in FAMILIES if family != "mistral"]  # whose layers all slide
BEYOND = ["llama", "gemma3", "gpt_oss", "glm4", "smollm3", "gemma2"]
LENGTHS = (250, 65, 200, 300, 64, 17, 190, 255)
"""Prompts that decode over the edge at 256, and some that do not."""


def dual(family: str, c: int, mscale: float = 1.0, **settings: object) -> Engine:
    """An engine that reads plain pages in chunks of c tokens."""
    return tiny_engine(family, Recipe("plain", "plain", dca="on", dca_chunk=c, dca_mscale=mscale), **settings)


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@cache
def right(family: str, tokens: tuple[int, ...], c: int, mscale: float = 1.0) -> tuple[torch.Tensor, float]:
    """Logits with angles and attention in float64, and how far from them ours may be: in float32 the angles
    alone are 2e-5 off at position 384."""
    exact = slow_logits(family, tokens, c, mscale, exact=True)
    rounded = slow_logits(family, tokens, c, mscale, exact=False)
    return exact, TIMES * max(FLOOR, gap(exact, rounded))


def scored(engine: Engine, tokens: Sequence[int], chunk: int) -> torch.Tensor:
    return engine.head(torch.cat([hidden for _, hidden in engine.score(tokens, chunk=chunk)]))


def check_answers(family: str, engine: Engine, prompts: list[list[int]], c: int, decoded: int) -> None:
    """The logits behind every sampled token."""
    with recorded(engine) as rows:
        answers = engine.generate(prompts, greedy(decoded))
    for prompt, answer in zip(prompts, answers, strict=True):
        exact, most = right(family, (*prompt, *answer.tokens), c)
        assert gap(torch.stack(rows[answer.request]), exact[len(prompt) - 1 : -1]) <= most, len(prompt)
    assert live(engine) == 0
    audit_engine(engine)


# within two chunks


@pytest.mark.parametrize(
    ("family", "chunk", "company", "shared"), [row for row in covering() if row[0] in TURNING]
)
def test_within_two_chunks_nothing_changes(family: str, chunk: int, company: int, shared: bool) -> None:
    """Prompts up to 2c, decoded over the first edge, against Transformers without Dual Chunk Attention."""
    engine = dual(family, 256, chunk=chunk)
    common = random_tokens(150, 99) if shared else []
    prompts = [common + random_tokens(n, seed) for seed, n in enumerate(LENGTHS[:company])]
    with recorded(engine) as rows:
        answers = engine.generate(prompts, greedy(12))
    assert live(engine) == 0
    audit_engine(engine)
    if shared and company > 1:
        assert [a.usage.cached_tokens for a in answers] == [0] + [128] * (company - 1)
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = (*prompt, *answer.tokens)
        eager = transformers_logits(family, tokens)
        most = TIMES * max(FLOOR, gap(slow_logits(family, tokens, 256, exact=True), eager))
        ours = torch.stack(rows[answer.request])
        assert answer.tokens == tuple(ours.argmax(-1).tolist())
        assert gap(ours, eager[len(prompt) - 1 : -1]) <= most


@pytest.mark.parametrize("family", TURNING)
def test_every_position_within_two_chunks(family: str) -> None:
    tokens = tuple(random_tokens(384, 7))
    eager = transformers_logits(family, tokens)
    most = TIMES * max(FLOOR, gap(slow_logits(family, tokens, 192, exact=True), eager))
    engine = dual(family, 192)
    for chunk in (17, 64, 512):
        assert gap(scored(engine, tokens, chunk), eager) <= most
    rows = engine.stats().dca["rows"]  # type: ignore[index]
    assert rows == {"intra": 3 * 384, "succ": 3 * 192, "inter": 0}


# beyond


@pytest.mark.parametrize("c", [64, 192])
@pytest.mark.parametrize("family", BEYOND)
def test_every_position_up_to_six_chunks(family: str, c: int) -> None:
    tokens = tuple(random_tokens(6 * c, 8))
    exact, most = right(family, tokens, c)
    engine = dual(family, c)
    for chunk in (17, 100, 512) if c == 64 else (64, 300):
        assert gap(scored(engine, tokens, chunk), exact) <= most, chunk
    assert gap(exact, transformers_logits(family, tokens)) > 1000 * most  # there is something to get wrong


@pytest.mark.parametrize("length", [127, 128, 129, 191, 192, 193])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_prompts_that_end_at_an_edge(family: str, length: int) -> None:
    check_answers(family, dual(family, 64), [random_tokens(length, 1)], 64, 3)


@pytest.mark.parametrize("family", BEYOND)
def test_short_and_long_prompts_together(family: str) -> None:
    """Eight at once, some in their first chunk, some far beyond; some decode over an edge."""
    prompts = [random_tokens(n, n) for n in (20, 125, 380, 64, 190, 500, 250, 1)]
    check_answers(family, dual(family, 64, chunk=100), prompts, 64, 8)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
def test_forks_of_a_document_over_an_edge(family: str) -> None:
    """The document ends in a chunk's middle; its forks go over edges, and read its pages in other bands."""
    engine, text = dual(family, 128), random_tokens(330, 3)
    questions = [random_tokens(n, n) for n in (1, 54, 60, 200, 400)]
    with engine.document(text) as held, recorded(engine) as rows:
        answers = engine.generate(questions, greedy(6), document=held)
    for question, answer in zip(questions, answers, strict=True):
        assert answer.usage.cached_tokens == 330
        exact, most = right(family, (*text, *question, *answer.tokens), 128)
        assert gap(torch.stack(rows[answer.request]), exact[len(text) + len(question) - 1 : -1]) <= most
    engine.stats()
    assert live(engine) == 0


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_prefixes_found_again_are_read_in_their_bands(family: str) -> None:
    engine, text = dual(family, 64), random_tokens(700, 4)
    check_answers(family, engine, [text[:300]], 64, 2)
    check_answers(family, engine, [text, text[:450], text[:129], [*text[:320], *random_tokens(70, 9)]], 64, 4)
    assert engine.stats().prefix_hits == 4


@pytest.mark.parametrize("family", ["llama", "smollm3", "gemma3"])
def test_a_temperature_scales_the_layers_that_take_part(family: str) -> None:
    tokens = tuple(random_tokens(300, 8))
    exact, most = right(family, tokens, 64, 1.2)
    assert gap(scored(dual(family, 64, mscale=1.2), tokens, 100), exact) <= most
    assert gap(exact, right(family, tokens, 64)[0]) > 1000 * most


def test_pages_are_preempted_and_computed_again() -> None:
    """A pool too small for all: what is dropped comes back in its bands."""
    engine = dual("llama", 64, memory="1100KB", max_sequences=4, chunk=64)
    check_answers("llama", engine, [random_tokens(n, n) for n in (180, 200, 220, 210)], 64, 60)
    assert engine.stats().requests["preempted"] > 0


def test_a_model_that_slides_everywhere_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="all 2 layers of mistral slide over windows"):
        dual("mistral", 64)
