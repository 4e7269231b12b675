"""The engine on a GPU: kernels, prefill stretches and graphs against the reference backend there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from octavo import Engine, Recipe, Sampling
from octavo.attention.backend import TorchBackend
from octavo.engine.scheduler import Grant
from octavo.kernels.decode import DevicePlan
from octavo.kernels.wide import HOPPER, WIDE_HEAD_DIMS
from octavo.model.load import LoadedModel
from tests.engine.helpers import decode_grants, noisy_reference
from tests.tiny import tiny, tiny_loaded

pytestmark = pytest.mark.gpu

PAIRS = ["q8_0:q8_0", "q8_0:q4_0", "turbo4:turbo4", "turbo8:turbo3", "turbo4_tcq:turbo3_tcq", "plain:plain"]


SMOOTH: dict[str, dict[str, Any]] = {"gpt_oss": {"num_experts_per_tok": 4}}
"""All experts run: a router that picks some of them turns rounding into another answer."""


def on_gpu(family: str) -> LoadedModel:
    loaded = tiny_loaded(family, **SMOOTH.get(family, {}))
    loaded.module.to("cuda", torch.bfloat16)
    object.__setattr__(loaded.shape, "dtype", "bfloat16")
    return loaded


def make(family: str, pair: str, *, reference: bool = False, **settings: Any) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        if reference:
            patch.setattr(
                "octavo.engine.engine.choose_backend", lambda device, *_, **__: TorchBackend(device, "test")
            )
        settings = {"max_sequences": 8, **settings}
        engine = Engine(on_gpu(family), Recipe.from_pair(pair), memory="256MB", **settings)
    assert (engine.stats().backend["name"] == "torch") == reference
    return engine


def log_probs(engine: Engine, tokens: list[int], chunk: int) -> torch.Tensor:
    hidden = torch.cat([part for _, part in engine.score(tokens, chunk=chunk)])
    return engine.head(hidden).double().log_softmax(-1)


def kld(right: torch.Tensor, other: torch.Tensor) -> float:
    return float((right.exp() * (right - other)).sum(-1).mean())


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "gemma2"])
@pytest.mark.parametrize("pair", PAIRS)
def test_scores_agree_with_the_reference(family: str, pair: str) -> None:
    tokens = torch.randint(0, 256, (900,), generator=torch.Generator().manual_seed(1)).tolist()
    right = log_probs(make(family, pair, reference=True), tokens, 64)
    with noisy_reference():
        floor = kld(right, log_probs(make(family, pair, reference=True), tokens, 64))
    ours = make(family, pair)
    for chunk in (64, 256) if pair == "plain:plain" else (64,):
        assert kld(right, log_probs(ours, tokens, chunk)) < 3 * floor + 1e-3


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("wide", [0, 9])
def test_graphs_agree_with_eager_steps(
    family: str, pair: str, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager steps have narrow runs alone, graphs also wide ones of what at least `wide` rows share: their
    products have 16 bits where those of narrow runs have 8."""
    if wide and torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("wide runs need Hopper")
    engine = make(family, pair)
    wide_runs: list[int] = []
    load = DevicePlan.load
    monkeypatch.setattr(
        DevicePlan, "load", lambda own, plan: (wide_runs.append(len(plan.wide_runs)), load(own, plan))[1]
    )
    document = engine.document("The harbour has four cranes and a clock. " * 20)
    rules = Sampling(max_tokens=100, ignore_eos=True)
    for n in range(5):
        engine.submit(f"Question {n}: how many cranes?", rules, document=document)
    core = engine._core
    core.ahead.decoder = None  # what has run ahead would be taken for the graph's
    while sum(s.decoding for s in core.scheduler.running) < 5:
        engine.step()
    for _ in range(3):
        grants = [Grant(s, 1) for s in core.scheduler.running]
        for grant in grants:
            core.memory.ledger.extend(grant.sequence.holding, grant.sequence.computed + 1)
        eager = core.runner.logits(core.batch(grants))
        with monkeypatch.context() as patch:
            patch.setattr("octavo.attention.cuda.wide_from", lambda d: wide if d in WIDE_HEAD_DIMS else 0)
            patch.setattr("octavo.attention.cuda.SAVES", -math.inf)
            graph = core._run(grants)
        assert float((eager - graph).norm() / eager.norm()) < (3e-2 if wide else 1e-2)
        engine.step()
    assert bool(max(wide_runs)) == bool(
        wide and engine._core.loaded.shape.groups[-1].head_dim in WIDE_HEAD_DIMS
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_steps_run_ahead_say_the_same(family: str, temperature: float) -> None:
    """Across several pages, so that some are sealed on the way."""
    prompts = ["A harbour at dawn. " * n for n in (9, 7, 3)]
    rules = [Sampling(max_tokens=200, ignore_eos=True, temperature=temperature, seed=n) for n in range(3)]
    ahead, behind = (make(family, "q8_0:q4_0") for _ in range(2))
    behind._core.ahead.decoder = None
    assert ahead.generate(prompts, rules) == behind.generate(prompts, rules)


def test_engines_one_after_another() -> None:
    """Garbage with graphs in it must not be collected while the next engine captures its own."""
    prompts = ["A harbour at dawn. " * n for n in (1, 9)]
    said = []
    for _ in range(4):
        engine = make("llama", "q8_0:q4_0")
        said.append(engine.generate(prompts, Sampling(max_tokens=40, ignore_eos=True)))
        engine.cycle = engine  # type: ignore[attr-defined]  # only the collector can free it
        engine.close()
        del engine
    assert all([a.tokens for a in one] == [a.tokens for a in said[0]] for one in said)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_compiled_steps_agree_with_eager_ones(family: str) -> None:
    """Alone, where products of one row have a kernel of their own, and together. Fused steps round less
    often: they differ by what 16 bits cost, and compiled ones are no further from float32 than others."""
    engine, exact = make(family, "q8_0:q4_0", compile=True), tiny(family).cuda()
    core = engine._core
    for count in (1, 2, 3):
        engine.submit("A harbour at dawn. " * (3 + count), Sampling(max_tokens=100, ignore_eos=True))
        for _ in range(4):
            engine.step()
        grants = decode_grants(engine)
        assert len(grants) == count
        rows = [torch.tensor([g.sequence.tokens], device="cuda") for g in grants]
        right = torch.stack([exact(row).logits[0, -1].float() for row in rows])
        eager, compiled = core.runner.logits(core.batch(grants)), core._run(grants)
        off = [float((x - right).norm() / right.norm()) for x in (eager, compiled)]
        assert off[1] < 1.5 * off[0] + 1e-2, off


@pytest.mark.parametrize("pair", PAIRS)
def test_greedy_text_agrees_up_to_near_ties(pair: str) -> None:
    rules = Sampling(max_tokens=60, ignore_eos=True, logprobs=2)
    prompts = ["A harbour at dawn. " * 9, "Four cranes and a clock. " * 5]
    right = make("llama", pair, reference=True).generate(prompts, rules)
    ours = make("llama", pair).generate(prompts, rules)
    for a, b in zip(right, ours, strict=True):
        for x, y in zip(a.logprobs, b.logprobs, strict=True):
            if x.token != y.token:
                assert x.top[0][2] - x.top[1][2] < 0.15
                break


def test_a_step_that_no_graph_has_room_for() -> None:
    """32 prompts that are prefixes of one another meet in 32 places; they decode without a graph."""
    engine = make("llama", "q8_0:q4_0", max_sequences=32)
    text = torch.randint(0, 256, (33 * 64,), generator=torch.Generator().manual_seed(2)).tolist()
    rules = Sampling(max_tokens=4, ignore_eos=True)
    engine.generate([text], rules)
    answers = engine.generate([text[: 64 * n + 3] for n in range(1, 33)], rules)
    assert [len(a.tokens) for a in answers] == [4] * 32
