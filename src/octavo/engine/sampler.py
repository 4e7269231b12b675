"""From logits to the next token of each sequence.

Order, as in vLLM: penalties, logit bias, temperature, top-k, top-p, min-p. Randomness is Philox keyed by the
request's seed and counted by the token's index, so a request draws the same numbers whatever shares its
batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from octavo.engine.requests import Sampling
from octavo.engine.sequence import Sequence

__all__ = ["Choice", "choose", "probabilities"]


@dataclass(frozen=True)
class Choice:
    """A chosen token; `logprob` and `top` [(token, logprob)] are under the unmodified model, if asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(logits: torch.Tensor, sequences: list[Sequence]) -> list[Choice]:
    """logits [W, V] float32, one row per sequence."""
    rows = [adjust(row, s) for row, s in zip(logits, sequences, strict=True)]
    greedy = torch.stack(rows).argmax(-1).tolist() if rows else []
    choices = []
    for n, (row, s) in enumerate(zip(rows, sequences, strict=True)):
        token = greedy[n] if s.sampling.temperature == 0 else draw(row, s.sampling, s.generated)
        choices.append(report(logits[n], token, s.sampling))
    return choices


def adjust(row: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """Penalties over generated tokens and the bias map; the row itself stays as it is."""
    rules = sequence.sampling
    if rules.presence_penalty or rules.frequency_penalty:
        counts = Counter(sequence.tokens[sequence.answer :])
        if counts:
            ids = torch.tensor(list(counts), device=row.device)
            times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
            row = row.index_add(0, ids, -(rules.presence_penalty + rules.frequency_penalty * times))
    if rules.logit_bias:
        ids = torch.tensor(list(rules.logit_bias), device=row.device)
        row = row.index_add(
            0, ids, torch.tensor(list(rules.logit_bias.values()), device=row.device, dtype=row.dtype)
        )
    return row


def probabilities(row: torch.Tensor, rules: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Filtered probabilities, most likely first, and their tokens. row [V]; temperature > 0."""
    row = row.double()
    row = (row - row.max()) / rules.temperature  # so that no temperature, however small, overflows
    probs, tokens = torch.softmax(row, -1).sort(descending=True, stable=True)
    if rules.top_k:
        probs, tokens = probs[: rules.top_k], tokens[: rules.top_k]
        probs = probs / probs.sum()
    if rules.top_p < 1:
        before = probs.cumsum(0) - probs
        probs = probs.where(before < rules.top_p, 0)
        probs = probs / probs.sum()
    if rules.min_p:
        probs = probs.where(probs >= rules.min_p * probs[0], 0)
        probs = probs / probs.sum()
    return probs, tokens


def draw(row: torch.Tensor, rules: Sampling, index: int) -> int:
    probs, tokens = probabilities(row, rules)
    chance = np.random.Generator(np.random.Philox(key=(rules.seed or 0) % 2**64, counter=index)).random()
    sums = probs.cumsum(0)
    place = int(torch.searchsorted(sums, chance * float(sums[-1]), right=True))
    return int(tokens[min(place, int((probs > 0).sum()) - 1)])


def report(row: torch.Tensor, token: int, rules: Sampling) -> Choice:
    if rules.logprobs is None:
        return Choice(token)
    logprobs = torch.log_softmax(row, -1)
    values, tokens = logprobs.topk(min(rules.logprobs, len(row)))
    top = tuple((int(t), float(v)) for t, v in zip(tokens.tolist(), values.tolist(), strict=True))
    return Choice(token, float(logprobs[token]), top)
