"""A document is computed and stored once, however many agents hang on it, and none of them can tell."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from octavo import Engine
from octavo.engine.requests import Completion
from tests.engine.helpers import audit_engine, greedy, random_tokens, recorded, tiny_engine

DOCUMENT, SUFFIX, ANSWER = 4000, 24, 32
KLD = 1e-6
"""Nats a token; what two ways of adding up the same softmax may differ by."""

Rows = list[list[torch.Tensor]]


def suffix(agent: int, length: int = SUFFIX) -> list[int]:
    return random_tokens(length, 1000 + agent)


def run_forked(engine: Engine, document: list[int], agents: int) -> tuple[list[Completion], Rows]:
    with engine.document(document) as held, recorded(engine) as rows:
        answers = engine.generate([suffix(n) for n in range(agents)], greedy(ANSWER), document=held)
    return answers, [rows[a.request] for a in answers]


def run_cold(engine: Engine, document: list[int], agents: int) -> tuple[list[Completion], Rows]:
    with recorded(engine) as rows:
        answers = engine.generate([document + suffix(n) for n in range(agents)], greedy(ANSWER))
    return answers, [rows[a.request] for a in answers]


RUNS = {"forked": run_forked, "cold": run_cold}


def divergence(ours: list[torch.Tensor], alone: list[torch.Tensor]) -> float:
    """The largest KL divergence of any token, in nats."""
    p, q = torch.stack(alone).double().log_softmax(-1), torch.stack(ours).double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).max())


@pytest.mark.parametrize("way", RUNS)
@pytest.mark.parametrize(
    ("family", "tokens", "agents", "least"),
    [
        ("llama", DOCUMENT, 8, 6.0),
        ("llama", DOCUMENT, 32, 14.0),
        ("gemma3", DOCUMENT, 8, 6.0),
        ("llama", 874, 8, 3.8),  # two open pages an agent weigh more beside a short document
    ],
)
def test_counted_once(family: str, tokens: int, agents: int, least: float, way: str) -> None:
    document = random_tokens(tokens, 5)
    engine = tiny_engine(family, memory="40MB", max_sequences=agents)
    answers, rows = RUNS[way](engine, document, agents)
    stats = engine.stats()
    assert stats.requests["preempted"] == 0
    assert stats.tokens["computed"] <= tokens + agents * (SUFFIX + 63)
    assert stats.tokens["computed"] + stats.tokens["cached"] == agents * (tokens + SUFFIX) + tokens * (
        way == "forked"
    )
    naive = agents * (tokens + SUFFIX + ANSWER)
    assert naive / stats.cells["peak"] >= least
    audit_engine(engine)
    for n in (0, agents // 2 - 1, agents - 1):
        alone_answers, alone = run_alone(family, tokens, n)
        assert answers[n].tokens == alone_answers[0].tokens
        assert len(rows[n]) == ANSWER
        assert divergence(rows[n], alone[0]) <= KLD


@cache
def run_alone(family: str, tokens: int, agent: int) -> tuple[list[Completion], Rows]:
    engine = tiny_engine(family, memory="40MB", max_sequences=1)
    with recorded(engine) as rows:
        answers = engine.generate([random_tokens(tokens, 5) + suffix(agent)], greedy(ANSWER))
    return answers, [rows[answers[0].request]]


def test_the_divergence_sees_another_agents_suffix() -> None:
    """What KLD would be if one agent read another's private tokens."""
    document = random_tokens(300, 5)
    engine = tiny_engine()
    _, (mine, other) = run_forked(engine, document, 2)
    assert divergence(mine, other) > 1000 * KLD


def test_a_fork_computes_only_its_own_tokens() -> None:
    engine = tiny_engine()
    with engine.document(random_tokens(100, 1)) as document:
        before = engine.stats().tokens["computed"]
        answers = engine.generate([suffix(n, 7) for n in range(4)], greedy(1), document=document)
        assert engine.stats().tokens["computed"] - before == 4 * 7
        assert [a.usage.cached_tokens for a in answers] == [100] * 4


def test_a_leader_that_goes_away_hands_the_lead_on() -> None:
    """Four alike prompts arrive cold; the first is aborted half-way, and what it computed stays of use."""
    engine = tiny_engine(chunk=64)
    document = random_tokens(500, 2)
    ids = [engine.submit(document + suffix(n), greedy(4)) for n in range(4)]
    for _ in range(3):
        engine.step()
    assert engine.stats().requests["running"] == 1
    engine.abort(ids[0])
    audit_engine(engine)
    while not engine.idle:
        engine.step()
        audit_engine(engine)
    assert engine.stats().requests["finished"] == 3
    assert engine.stats().tokens["computed"] <= 500 + 4 * (SUFFIX + 63)


def test_recent_pages_of_a_finished_request_are_found_again() -> None:
    engine = tiny_engine()
    (first,) = engine.generate([random_tokens(200, 3)], greedy(100))
    (again,) = engine.generate([[*random_tokens(200, 3), *first.tokens, 7]], greedy(1))
    assert again.usage.cached_tokens == 256  # 299 tokens are stored: four complete pages
