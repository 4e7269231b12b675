"""Dual Chunk Attention on a GPU: kernels, stretches and graphs against the reference backend there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo import Engine, Recipe
from octavo.attention.backend import TorchBackend
from octavo.engine.scheduler import Grant
from octavo.model.load import LoadedModel
from tests.engine.helpers import greedy, noisy_reference, random_tokens
from tests.engine.slow_dca import slow_logits
from tests.engine.test_gpu import SMOOTH, kld, log_probs
from tests.tiny import tiny_loaded

pytestmark = pytest.mark.gpu

FAMILIES = ["llama", "gemma3", "gpt_oss", "gemma2", "glm4", "smollm3"]
PAIRS = ["plain:plain", "q8_0:q4_0", "turbo8:turbo3"]


def on_gpu(family: str, dtype: torch.dtype) -> LoadedModel:
    loaded = tiny_loaded(family, **SMOOTH.get(family, {}))
    loaded.module.to("cuda", dtype)
    object.__setattr__(loaded.shape, "dtype", str(dtype).removeprefix("torch."))
    return loaded


def make(
    family: str,
    pair: str = "plain:plain",
    *,
    c: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    reference: bool = False,
    **settings: Any,
) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        if reference:
            patch.setattr(
                "octavo.engine.engine.choose_backend", lambda device, *_, **__: TorchBackend(device, "test")
            )
        recipe = Recipe.from_pair(pair, dca="on", dca_chunk=c)
        engine = Engine(on_gpu(family, dtype), recipe, memory="256MB", max_sequences=8, **settings)
    assert (engine.stats().backend["name"] == "torch") == reference
    return engine


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_agree_with_the_reference(family: str, pair: str, dtype: torch.dtype) -> None:
    """Prefill over edges: parts of a step through the stretches, and short ones through the decode kernel."""
    tokens = random_tokens(900, 1)
    right = {
        c: log_probs(make(family, pair, c=c, dtype=dtype, reference=True), tokens, 64) for c in (64, 192)
    }
    with noisy_reference():
        other = make(family, pair, c=64, dtype=dtype, reference=True)
        floor = kld(right[64], log_probs(other, tokens, 64))
    for c, wanted in right.items():
        ours = make(family, pair, c=c, dtype=dtype)
        for chunk in (64, 100, 900) if pair == "plain:plain" else (64,):
            assert kld(wanted, log_probs(ours, tokens, chunk)) < 3 * floor + 1e-3, (c, chunk)
        assert ours.stats().dca is not None  # verified


@pytest.mark.parametrize("family", ["llama", "gemma3", "glm4"])
def test_short_segments_over_edges(family: str) -> None:
    """Five tokens a step, all through the decode kernel, which they enter in two parts at an edge."""
    tokens = random_tokens(400, 2)
    right = log_probs(make(family, reference=True), tokens, 64)
    floor = kld(right, log_probs(make(family, reference=True), tokens, 5))
    assert kld(right, log_probs(make(family), tokens, 5)) < 3 * floor + 5e-3


@pytest.mark.parametrize("family", ["llama", "gemma3", "glm4", "smollm3"])
def test_as_near_to_float64_as_the_reference(family: str) -> None:
    tokens = random_tokens(400, 3)
    exact = slow_logits(family, tokens, 64, exact=True).double().log_softmax(-1)
    floor = kld(exact, log_probs(make(family, reference=True), tokens, 100).cpu())
    assert kld(exact, log_probs(make(family), tokens, 100).cpu()) < 2 * floor + 1e-3


def decoding(engine: Engine, lengths: tuple[int, ...]) -> None:
    """All prompts are read and decode."""
    for n in lengths:
        engine.submit(random_tokens(n, n), greedy(100))
    running = engine._core.scheduler.running
    while len(running) < len(lengths) or any(not s.decoding for s in running):
        engine.step()


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
def test_graphs_agree_with_eager_steps(family: str, pair: str) -> None:
    """Sequences in their first chunk, at an edge and far beyond, in one batch, over an edge."""
    engine = make(family, pair)
    core = engine._core
    decoding(engine, (10, 122, 185, 250, 700))
    for _ in range(9):
        grants = [Grant(s, 1) for s in core.scheduler.running]
        for grant in grants:
            core.memory.ledger.extend(grant.sequence.holding, grant.sequence.computed + 1)
        batch = core.batch(grants)
        eager = core.runner.logits(batch)
        graph = core._run(grants)
        assert float((eager - graph).norm() / eager.norm()) < 1e-2
        engine.step()


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_are_counted_in_graphs_too(pair: str) -> None:
    engine = make("llama", pair)
    lengths, decoded = (10, 60, 120, 300), 70
    engine.generate([random_tokens(n, n) for n in lengths], greedy(decoded))
    ran = [n + decoded - 1 for n in lengths]
    rows = [sum(max(0, n - 64 * band) for n in ran) for band in range(3)]
    dca = engine.stats().dca
    assert dca is not None and list(dca["rows"].values()) == rows


@pytest.mark.parametrize("pair", ["plain:plain", "q8_0:q4_0"])
def test_forks_of_a_document_in_different_chunks(pair: str) -> None:
    """Its pages are read in several bands at once; answers agree with the reference up to near ties."""
    found = []
    for reference in (True, False):
        engine = make("llama", pair, c=128, reference=reference)
        with engine.document(random_tokens(330, 3)) as held:
            questions = [random_tokens(n, n) for n in (1, 50, 200, 400)]
            found.append(engine.generate(questions, greedy(20, logprobs=2), document=held))
    for a, b in zip(*found, strict=True):
        for x, y in zip(a.logprobs, b.logprobs, strict=True):
            if x.token != y.token:
                assert x.top[0][2] - x.top[1][2] < 0.15
                break
