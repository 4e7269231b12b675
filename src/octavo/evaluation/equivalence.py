"""Logit equivalence: does a recipe change what the model says, beyond what a near-tie may change?

The reference (plain pages) answers needle prompts greedily. Both engines are then teacher-forced along these
very tokens, so distributions are compared position by position and never after texts went apart:

    real_frac         share of positions where the top token moved though the two candidates lie more than
                      `MARGIN` nats apart under the reference
    mean_tv, p95_tv   total variation over the reference's 20 likeliest tokens and the rest as one
    recall_mismatch   share of prompts where one engine's own greedy answer holds the needle and the other's
                      does not
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from octavo.engine.engine import Engine
from octavo.engine.requests import Sampling
from octavo.evaluation.measures import Measure, measure_of
from octavo.evaluation.ruler.score import found_share
from octavo.evaluation.ruler.task import Sample
from octavo.evaluation.statistics import quantile

__all__ = ["MARGIN", "TOP", "Equivalence", "PromptResult", "compare_logits", "run_equivalence"]

MARGIN = 0.1
TOP = 20


@dataclass(frozen=True)
class PromptResult:
    """One prompt: per position of the answer whether the top token really moved, and the total variation."""

    key: str
    moved: list[bool]
    variation: list[float]
    recalled: bool
    reference_recalled: bool


@dataclass(frozen=True)
class Equivalence:
    """All prompts of one recipe."""

    target: str
    prompts: Sequence[PromptResult] = field(default_factory=list)

    def as_row(self) -> dict[str, Any]:
        """One row of the report's table."""
        moved = [m for p in self.prompts for m in p.moved]
        variation = torch.tensor([v for p in self.prompts for v in p.variation], dtype=torch.float64)
        mismatches = [p.recalled != p.reference_recalled for p in self.prompts]
        return {
            "target": self.target,
            "prompts": len(self.prompts),
            "positions": len(moved),
            "real_frac": sum(moved) / len(moved),
            "mean_tv": float(variation.mean()),
            "p95_tv": quantile(variation.sort().values, 0.95),
            "recall_mismatch": sum(mismatches) / len(mismatches),
            "recall": sum(p.recalled for p in self.prompts) / len(self.prompts),
            "reference_recall": sum(p.reference_recalled for p in self.prompts) / len(self.prompts),
            "margin_nats": MARGIN,
        }

    def measures(self) -> list[Measure]:
        """Mean variation and share of moved tops, prompt by prompt."""
        tv = [(p.key, sum(p.variation) / len(p.variation)) for p in self.prompts]
        moved = [(p.key, sum(p.moved) / len(p.moved)) for p in self.prompts]
        return [
            measure_of("needle answers", self.target, "mean TV", tv, "low"),
            measure_of("needle answers", self.target, "real_frac", moved, "low"),
        ]


def compare_logits(reference: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [n, V] → really moved [n] bool, and total variation [n] float64."""
    p, q = reference.double().log_softmax(-1), candidate.double().log_softmax(-1)
    top, other = p.argmax(-1), q.argmax(-1)
    margin = (p.gather(-1, top[:, None]) - p.gather(-1, other[:, None])).squeeze(-1)
    likely = p.topk(min(TOP, p.shape[-1]), -1).indices
    inside_p, inside_q = p.exp().gather(-1, likely), q.exp().gather(-1, likely)
    rest = (inside_p.sum(-1) - inside_q.sum(-1)).abs()
    variation = ((inside_p - inside_q).abs().sum(-1) + rest) / 2
    return (top != other) & (margin > MARGIN), variation


def run_equivalence(
    reference: Engine,
    candidate: Engine,
    samples: Sequence[Sample],
    target: str,
    *,
    max_tokens: int = 32,
    chunk: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Equivalence:
    """Every prompt through both engines; `max_tokens` of each answer are compared."""
    results = []
    for done, sample in enumerate(samples, 1):
        results.append(_prompt(reference, candidate, sample, max_tokens, chunk))
        progress(done, len(samples))
    return Equivalence(target, results)


def _prompt(
    reference: Engine, candidate: Engine, sample: Sample, max_tokens: int, chunk: int
) -> PromptResult:
    prompt = list(sample.prompt_tokens)
    sampling = Sampling(max_tokens=max_tokens)
    answer = reference.generate([prompt], sampling)[0]
    own = candidate.generate([prompt], sampling)[0]
    tokens = [*prompt, *answer.tokens]
    logits = [_answer_logits(engine, tokens, len(prompt), chunk) for engine in (reference, candidate)]
    moved, variation = compare_logits(*logits)
    return PromptResult(
        f"{sample.task}/{sample.length}/{sample.index}",
        moved.tolist(),
        variation.tolist(),
        _recalled(own.text, sample),
        _recalled(answer.text, sample),
    )


def _answer_logits(engine: Engine, tokens: list[int], prompt: int, chunk: int) -> Tensor:
    """Logits of the positions that predict tokens[prompt:], on the CPU."""
    rows = [
        engine.head(hidden[max(0, prompt - 1 - start) :]).cpu()
        for start, hidden in engine.score(tokens[:-1], chunk=chunk)
        if start + len(hidden) >= prompt
    ]
    return torch.cat(rows)


def _recalled(text: str, sample: Sample) -> bool:
    return found_share(text, sample.draft.references) == 1.0
