"""Plain pages in float32 give Transformers' logits, whatever the chunks, the company and the sharing."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, cast

import pytest
import torch

from octavo import Engine
from tests.engine.helpers import (
    PLAIN,
    audit_engine,
    greedy,
    live,
    noise,
    random_tokens,
    recorded,
    tiny_engine,
    transformers_logits,
)
from tests.tiny import FAMILIES, tiny_loaded

CHUNKS, COMPANIES, DECODED = (17, 64, 512), (1, 3, 8), 64
LENGTHS = (230, 65, 128, 301, 64, 17, 191, 130)
"""Unequal, on and off page boundaries; the first alone is past every tiny model's window."""
SHARED = 150
TIMES = 3
"""How many times Transformers' distance from itself ours may be."""
FLOOR = 5e-6
"""A distance no two float32 implementations can be asked to keep below."""


def covering() -> list[tuple[str, int, int, bool]]:
    """Two rows a family; every pair of chunk, company and sharing occurs."""
    rows = []
    for n, family in enumerate(FAMILIES):
        for second in (0, 1):
            k = 2 * n + second
            rows.append((family, CHUNKS[k % 3], COMPANIES[(k + k // 3) % 3], bool((k + n) % 2)))
    return rows


def everything() -> list[tuple[str, int, int, bool]]:
    return [case for case in product(FAMILIES, CHUNKS, COMPANIES, (False, True)) if case not in covering()]


def test_the_rows_cover_every_pair_of_settings() -> None:
    rows = covering()
    assert {family for family, *_ in rows} == set(FAMILIES)
    for a, b in ((1, 2), (1, 3), (2, 3)):
        values: list[set[Any]] = [{row[i] for row in rows} for i in (a, b)]
        assert {(row[a], row[b]) for row in rows} == set(product(*values))


@pytest.mark.parametrize(("family", "chunk", "company", "shared"), covering())
def test_serving_is_exact(family: str, chunk: int, company: int, shared: bool) -> None:
    check_serving(family, chunk, company, shared)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "chunk", "company", "shared"), everything())
def test_serving_is_exact_everywhere(family: str, chunk: int, company: int, shared: bool) -> None:
    check_serving(family, chunk, company, shared)


def check_serving(family: str, chunk: int, company: int, shared: bool) -> None:
    """Every sampled token and the logits behind it, against one pass of Transformers over all of it."""
    engine = tiny_engine(family, chunk=chunk)
    common = random_tokens(SHARED, 99) if shared else []
    prompts = [common + random_tokens(n, seed) for seed, n in enumerate(LENGTHS[:company])]
    with recorded(engine) as rows:
        answers = engine.generate(prompts, greedy(DECODED))
    assert live(engine) == 0
    audit_engine(engine)
    if shared and company > 1:
        assert [a.usage.cached_tokens for a in answers] == [0] + [SHARED // 64 * 64] * (company - 1)
    gaps: list[float] = []
    noises = [FLOOR]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer.tokens) == DECODED
        tokens = [*prompt, *answer.tokens]
        eager = transformers_logits(family, tokens)
        ours = torch.stack(rows[answer.request])
        assert answer.tokens == tuple(ours.argmax(-1).tolist())
        noises.append(noise(family, tokens, eager, decoded=4 if gaps else DECODED))
        gaps.append(float((ours - eager[len(prompt) - 1 : -1]).abs().max()))
    bound = TIMES * max(noises)
    assert max(gaps) <= bound, f"{max(gaps):.2e} from Transformers, {bound:.2e} allowed"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_position_of_a_prefill_is_exact(family: str) -> None:
    tokens = random_tokens(333, 7)
    eager = transformers_logits(family, tokens)
    bound = TIMES * max(FLOOR, noise(family, tokens, eager))
    engine = tiny_engine(family)
    for chunk in CHUNKS:
        ours = engine.head(torch.cat([hidden for _, hidden in engine.score(tokens, chunk=chunk)]))
        gap = float((ours - eager).abs().max())
        assert gap <= bound, f"chunks of {chunk}: {gap:.2e} from Transformers, {bound:.2e} allowed"
    assert live(engine) == 0


@pytest.mark.parametrize("family", ("llama", "gemma3", "gpt_oss"))
def test_a_fork_of_a_document_is_exact(family: str) -> None:
    """The open page is copied in the middle of a page; the document's pages are read by all at once."""
    engine = tiny_engine(family)
    text = random_tokens(201, 3)
    with engine.document(text, name="d"), recorded(engine) as rows:
        questions = [random_tokens(n, n) for n in (1, 30, 90)]
        answers = engine.generate(questions, greedy(20), document="d")
    for question, answer in zip(questions, answers, strict=True):
        assert answer.usage.cached_tokens == 201
        tokens = [*text, *question, *answer.tokens]
        eager = transformers_logits(family, tokens)
        gap = float(
            (torch.stack(rows[answer.request]) - eager[len(text) + len(question) - 1 : -1]).abs().max()
        )
        assert gap <= TIMES * max(FLOOR, noise(family, tokens, eager))


def test_the_bound_can_be_missed() -> None:
    """One percent more in one key projection is seen at once."""
    loaded = tiny_loaded("llama")
    with torch.no_grad():
        loaded.module.get_parameter("model.layers.1.self_attn.k_proj.weight").mul_(1.01)
    engine = Engine(loaded, PLAIN, memory="16MB")
    tokens = random_tokens(333, 7)
    eager = transformers_logits("llama", tokens)
    ours = engine.head(torch.cat([hidden for _, hidden in engine.score(tokens)]))
    assert float((ours - eager).abs().max()) > TIMES * max(FLOOR, noise("llama", tokens, eager))


# real models

REAL = {"smollm2-135m": 1500, "gemma3-270m": 1500}


@cache
def real(name: str, attention: str) -> Any:
    """The built-in model in float32, or skip with the reason."""
    load_model = getattr(pytest.importorskip("octavo.model.load"), "load_model", None)
    if load_model is None:
        pytest.skip("no loader of built-in models yet")
    from octavo.errors import OctavoError

    try:
        return load_model(name, dtype="float32", attention=attention)
    except OctavoError as reason:
        pytest.skip(f"{name} is not installed: {reason}")


@torch.inference_mode()
def some_logits(module: Any, tokens: list[int], rows: range) -> torch.Tensor:
    """Logits of `rows` only: all rows of a vocabulary of 262,144 would take gigabytes."""
    keep = torch.tensor(list(rows))
    out = module(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=keep).logits[0]
    return cast(torch.Tensor, out.float())


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_models_are_exact(name: str) -> None:
    """Prefill in three chunk sizes and 64 decoded tokens, past Gemma's window of 512."""
    loaded, sdpa_model = real(name, "eager"), real(name, "sdpa").module
    words = "The archive of the harbour keeps one page for every ship and every storm, in their order. "
    tokens = loaded.tokenizer.encode("".join(f"{n}. {words}" for n in range(200)))[: REAL[name]]
    rows = range(9, REAL[name], 10)
    eager = some_logits(loaded.module, tokens, rows)
    bound = TIMES * max(FLOOR, float((some_logits(sdpa_model, tokens, rows) - eager).abs().max()))
    engine = Engine(loaded, PLAIN, memory="1GB", max_sequences=4)
    for chunk in CHUNKS:
        ours = torch.cat([hidden for _, hidden in engine.score(tokens, chunk=chunk)])
        assert float((engine.head(ours[rows.start :: rows.step]) - eager).abs().max()) <= bound
    with recorded(engine) as seen:
        (answer,) = engine.generate([tokens], greedy(DECODED))
    decoded = range(len(tokens) - 1, len(tokens) + DECODED - 1)
    whole = some_logits(sdpa_model, [*tokens, *answer.tokens], decoded)
    assert float((torch.stack(seen[answer.request]) - whole).abs().max()) <= bound
