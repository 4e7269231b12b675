"""The next token's distribution against a plain numpy reading of the rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo import Sampling
from octavo.engine.sampler import adjust, choose, draw, probabilities
from octavo.engine.sequence import Sequence
from octavo.engine.text import Output
from octavo.model.tokenizer import Tokenizer
from octavo.pages.ledger import Ledger
from tests.tiny import byte_tokenizer

V = 50
NOWHERE = Ledger.build([], [], [], b"", recent=0, exact_pages=0).new()
Floats = npt.NDArray[np.float64]


def logits(seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(V, generator=torch.Generator().manual_seed(seed))


def sequence(rules: Sampling, generated: tuple[int, ...] = (), prompt: tuple[int, ...] = (1, 2)) -> Sequence:
    return Sequence(1, [*prompt, *generated], len(prompt), 10**6, rules, NOWHERE)


def expected(row: Floats, rules: Sampling) -> Floats:
    """Probabilities [V]: a token stays if fewer than top_k tokens, and less than top_p, are before it."""
    p: Floats = np.exp((row - row.max()) / rules.temperature)
    p /= p.sum()
    order = sorted(range(V), key=lambda t: (-p[t], t))
    if rules.top_k:
        p[order[rules.top_k :]] = 0
        p /= p.sum()
    if rules.top_p < 1:
        before = 0.0
        for token in order:
            mass = p[token]
            if before >= rules.top_p:
                p[token] = 0
            before += mass
        p /= p.sum()
    if rules.min_p:
        p[p < rules.min_p * p.max()] = 0
        p /= p.sum()
    return p


def measured(row: torch.Tensor, rules: Sampling) -> Floats:
    probs, tokens = probabilities(row, rules)
    whole = np.zeros(V)
    whole[tokens.numpy()] = probs.numpy()
    return whole


@given(
    seed=st.integers(0, 10**6), scale=st.sampled_from((0.01, 1.0, 5.0, 50.0)),
    temperature=st.sampled_from((0.1, 0.7, 1.0, 2.0, 100.0)), top_k=st.sampled_from((0, 1, 5, 49, 50, 1000)),
    top_p=st.sampled_from((1e-9, 0.1, 0.5, 0.9, 0.999, 1.0)), min_p=st.sampled_from((0.0, 0.05, 0.5, 1.0)),
)  # fmt: skip
def test_probabilities(
    seed: int, scale: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    rules = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = logits(seed, scale)
    np.testing.assert_allclose(measured(row, rules), expected(row.double().numpy(), rules), atol=1e-9)


@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1e-9])
def test_hardly_any_temperature_is_greedy(temperature: float) -> None:
    rules = Sampling(temperature=temperature)
    for seed in range(10):
        row = logits(seed)
        assert draw(row, rules, seed) == int(row.argmax())


@pytest.mark.parametrize(
    "rules",
    [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=1.5, top_k=7, seed=2),
        Sampling(temperature=0.8, top_p=0.7, seed=3),
        Sampling(temperature=1.2, min_p=0.1, seed=4),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(rules: Sampling) -> None:
    """Pearson's statistic over 4,000 draws stays below what chance exceeds once in a million."""
    row, n = logits(5), 4000
    p = expected(row.double().numpy(), rules)
    counts = np.bincount([int(draw(row, rules, index)) for index in range(n)], minlength=V)
    assert not counts[p == 0].any(), "a filtered token was drawn"
    likely = p * n >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    mean = np.append(p[likely], p[~likely].sum()) * n
    kept = mean > 0
    statistic = float(((observed[kept] - mean[kept]) ** 2 / mean[kept]).sum())
    freedom = int(kept.sum()) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 15


def test_draws_depend_on_seed_and_place_only() -> None:
    row = logits(1, 0.1)
    rules = [Sampling(temperature=1.0, seed=seed) for seed in (0, 1, -1, 2**64 + 7)]
    drawn = [[draw(row, rule, index) for index in range(40)] for rule in rules]
    assert drawn == [[draw(row, rule, index) for index in range(40)] for rule in rules]
    assert len({tuple(d) for d in drawn}) == 4
    assert all(len(set(d)) > 10 for d in drawn), "every place has its own number"


def test_penalties_count_what_was_generated() -> None:
    rules = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    row = logits()
    adjusted = adjust(row, sequence(rules, generated=(3, 4, 3, 3), prompt=(1, 2, 4)))
    want = row.clone()
    want[3] -= 0.5 + 3 * 0.25
    want[4] -= 0.5 + 0.25
    torch.testing.assert_close(adjusted, want)
    torch.testing.assert_close(row, logits(), msg="the model's logits were changed")


def test_bias_is_added_once() -> None:
    row = logits()
    adjusted = adjust(row, sequence(Sampling(logit_bias={7: -100.0, 9: 3.5}), generated=(7, 7)))
    want = row.clone()
    want[7] -= 100
    want[9] += 3.5
    torch.testing.assert_close(adjusted, want)


def test_rules_of_one_row_do_not_touch_another() -> None:
    rules = [
        Sampling(),
        Sampling(logit_bias={5: 100.0}),
        Sampling(temperature=1.0, seed=3),
        Sampling(logprobs=2),
    ]
    rows = torch.stack([logits(n) for n in range(4)])
    choices = choose(rows, [sequence(r) for r in rules])
    assert choices[0].token == int(rows[0].argmax())
    assert choices[1].token == 5
    assert choices[2].token == draw(rows[2], rules[2], 0)
    assert choices[3].top[0][0] == choices[3].token and len(choices[3].top) == 2
    assert [c.logprob is None for c in choices] == [True, True, True, False]


def test_nothing_to_choose() -> None:
    assert choose(torch.empty(0, V), []) == []


def test_more_alternatives_than_tokens() -> None:
    (choice,) = choose(logits()[None, :7], [sequence(Sampling(logprobs=20))])
    assert sorted(t for t, _ in choice.top) == list(range(7))


# text


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_tokenizer())


@given(text=st.text("abé", max_size=30), stops=st.lists(st.text("abé", min_size=1, max_size=4), max_size=3))
def test_output_never_takes_text_back(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    """What was released is the text up to the first stop string to be complete, and grows only."""
    output = Output(tokenizer, tuple(stops))
    said = ""
    for token in text.encode():
        said += output.add(token)
        if output.stopped:
            break
    else:
        said += output.flush()
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    assert said == (text[: min(ends)[1]] if ends else text)
    assert output.stopped == bool(ends)
