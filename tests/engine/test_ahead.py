"""Steps begun before the host knows the last tokens: the same answers, by the same decisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo import Engine, Recipe, Sampling
from octavo.engine.requests import Delta
from tests.engine.helpers import PLAIN, Eager, audit_engine, greedy, live, random_tokens, tiny_engine

Q8 = Recipe("q8_0", "q8_0", recent=0)


def run(engine: Engine, rules: list[Sampling], *, late: int = 0, aborted: int = -1) -> list[list[Delta]]:
    """Deltas by step: requests of unlike lengths, the last `late` of them only after some steps."""
    prompts = [random_tokens(50 + 9 * n, n) for n in range(len(rules))]
    first = len(rules) - late
    ids = [engine.submit(p, r) for p, r in zip(prompts[:first], rules[:first], strict=True)]
    steps = []
    for n in range(400):
        if n == 6:
            ids += [engine.submit(p, r) for p, r in zip(prompts[first:], rules[first:], strict=True)]
        if n == 9 and aborted >= 0:
            engine.abort(ids[aborted])
        steps.append(engine.step())
        audit_engine(engine)
        if engine.idle and n > 6:
            return steps
    raise AssertionError("requests wait for each other")


def both(rules: list[Sampling], recipe: Recipe = PLAIN, family: str = "llama", **events: Any) -> Eager:
    """Check that an engine that runs ahead says the same in every step as one that does not."""
    settings = {"chunk": 64, "max_sequences": 3}
    plain, ahead = (tiny_engine(family, recipe, **settings) for _ in range(2))
    decoder = Eager(ahead)
    assert run(ahead, rules, **events) == run(plain, rules, **events)
    for own in (ahead, plain):
        assert live(own) == 0
    return decoder


@pytest.mark.parametrize("recipe", [PLAIN, Q8], ids=("plain", "q8_0"))
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_steps_run_ahead_say_the_same(family: str, recipe: Recipe) -> None:
    decoder = both([greedy(n) for n in (90, 20, 70)], recipe, family)
    assert decoder.steps > 60


def test_all_kinds_of_sampling() -> None:
    rules = [
        Sampling(max_tokens=40, temperature=0.9, seed=7, top_p=0.9, ignore_eos=True),
        greedy(40, presence_penalty=1.5, frequency_penalty=0.5, logprobs=3),
        Sampling(max_tokens=40, temperature=1.3, seed=8, top_k=30, min_p=0.01, logit_bias={5: 3.0}),
    ]
    assert both(rules).steps > 20


def test_requests_that_come_end_and_are_cancelled_meanwhile() -> None:
    decoder = both([greedy(n) for n in (80, 30, 12, 50, 60)], late=2, aborted=0)
    assert decoder.steps > 30


def test_what_ends_by_its_own_word_is_dropped() -> None:
    """A sequence that stops is known only when its next step has run already."""
    ends = tiny_engine().generate([random_tokens(50, 0)], greedy(40))[0].tokens[25]
    stopping = Sampling(max_tokens=90, stop_token_ids=(ends,), ignore_eos=True)
    assert both([stopping, greedy(60)]).steps > 40


def test_a_lack_of_pages_is_left_to_the_scheduler() -> None:
    small = {"memory": "1.3MB", "max_sequences": 4}  # 10 pages
    plain, ahead = (tiny_engine(**small) for _ in range(2))
    decoder = Eager(ahead)
    rules = [greedy(150) for _ in range(4)]
    assert [d.tokens for step in run(ahead, rules) for d in step]
    assert ahead.stats().requests["preempted"] and decoder.steps
    run(plain, rules)
    assert ahead.stats().requests == plain.stats().requests


def test_nothing_runs_ahead_while_prompts_wait() -> None:
    engine = tiny_engine(chunk=64, max_sequences=3)
    decoder = Eager(engine)
    engine.submit(random_tokens(30), greedy(50))
    engine.step()
    assert decoder.steps == 1
    engine.submit(random_tokens(500, 1), greedy(5))
    for _ in range(7):
        engine.step()
    assert decoder.steps == 1
    assert torch.is_tensor(engine._core.ahead.take([])) is False
