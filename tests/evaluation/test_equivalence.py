"""Logit equivalence by hand, and on a tiny model."""

from __future__ import annotations

import pytest
import torch

from octavo.evaluation.equivalence import compare_logits, run_equivalence
from octavo.evaluation.ruler.task import Draft, Sample
from octavo.evaluation.setup import Bench
from octavo.recipe import Recipe
from tests.evaluation.bench import loaded, said


def test_a_near_tie_is_not_a_real_move() -> None:
    reference = torch.tensor([[2.0, 1.95, 0.0], [2.0, 1.8, 0.0], [2.0, 1.0, 0.0]])
    candidate = torch.tensor([[1.9, 2.0, 0.0], [1.9, 2.0, 0.0], [2.0, 1.0, 0.0]])
    moved, variation = compare_logits(reference, candidate)
    assert moved.tolist() == [False, True, False]
    p, q = reference.double().softmax(-1), candidate.double().softmax(-1)
    assert torch.allclose(variation, (p - q).abs().sum(-1) / 2) and variation[2] == 0


def test_what_is_not_likely_counts_as_one() -> None:
    reference = torch.zeros(1, 40)
    reference[0, :20] = 5.0
    candidate = reference.clone()
    candidate[0, 20:] += 1.0
    _, variation = compare_logits(reference, candidate)
    p, q = reference.double().softmax(-1), candidate.double().softmax(-1)
    assert variation.item() == pytest.approx(float((p - q).abs().sum() / 2))
    candidate[0, 20:30] += 1.0  # a shift among the unlikely is seen only in their sum
    _, lumped = compare_logits(reference, candidate)
    q = candidate.double().softmax(-1)
    inside = (p[0, :20] - q[0, :20]).abs().sum()
    assert lumped.item() == pytest.approx(float(inside + (p[0, 20:].sum() - q[0, 20:].sum()).abs()) / 2)


def samples(count: int = 3) -> list[Sample]:
    return [
        Sample("t", "all", 256, n, Draft("", "", ("never",)), 8, 0, said()[n : n + 200]) for n in range(count)
    ]


def test_plain_against_plain_is_equal_and_quantised_is_not() -> None:
    bench = Bench(loaded())
    plain, q4 = Recipe.from_pair("plain"), Recipe.from_pair("q4_0", recent=0)
    rows = []
    for recipe in (plain, q4):
        with bench.engine(plain, tokens=300) as reference, bench.engine(recipe, tokens=300) as candidate:
            rows.append(run_equivalence(reference, candidate, samples(), recipe.pair, max_tokens=8).as_row())
    same, damaged = rows
    assert same["real_frac"] == 0.0 and same["mean_tv"] == 0.0 and same["recall_mismatch"] == 0.0
    assert same["positions"] == damaged["positions"] == 24 and same["prompts"] == 3
    assert damaged["mean_tv"] > 1e-4 and damaged["p95_tv"] >= damaged["mean_tv"]
    assert same["recall"] == same["reference_recall"] == 0.0
