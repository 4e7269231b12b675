"""From logits to the next token of each sequence.

Order, as in vLLM: penalties, logit bias, temperature, top-k, top-p, min-p. Randomness is Philox keyed by the
request's seed and counted by the token's index, so a request draws the same numbers whatever shares its
batch.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.engine.requests import Sampling
from octavo.engine.sequence import Sequence

__all__ = ["Choice", "Picked", "choose", "pick", "probabilities"]


@dataclass(frozen=True)
class Choice:
    """A chosen token; `logprob` and `top` [(token, logprob)] are under the unmodified model, if asked for.

    Not `sound` where the model's logits were no finite numbers.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    sound: bool = True


class Picked:
    """The next tokens [W], chosen on the device; `read` waits for them and for what was asked about them.
    `best` [W] are the largest logits."""

    def __init__(self, tokens: torch.Tensor, best: torch.Tensor, reports: dict[int, Report]):
        self.tokens = tokens
        self._tokens, self._best = to_host(tokens), to_host(best)
        self._reports = {row: tuple(to_host(part) for part in report) for row, report in reports.items()}
        self._there = torch.cuda.Event() if tokens.is_cuda else None  # type: ignore[no-untyped-call]
        if self._there is not None:
            self._there.record()

    def read(self) -> list[Choice]:
        """One choice a row. Work launched since is not waited for."""
        if self._there is not None:
            self._there.synchronize()
        chosen = zip(self._tokens.tolist(), self._best.tolist(), strict=True)
        return [self._choice(row, token, math.isfinite(best)) for row, (token, best) in enumerate(chosen)]

    def _choice(self, row: int, token: int, sound: bool) -> Choice:
        if row not in self._reports:
            return Choice(token, sound=sound)
        chosen, values, tokens = (part.tolist() for part in self._reports[row])
        return Choice(token, chosen[0], tuple(zip(tokens, values, strict=True)), sound)


def pick(logits: torch.Tensor, sequences: list[Sequence]) -> Picked:
    """logits [W, V] float32, one row per sequence. Launches only: nothing waits for the device."""
    rows = [adjust(row, s) for row, s in zip(logits, sequences, strict=True)]
    if not rows:
        return Picked(logits.new_empty(0, dtype=torch.long), logits.new_empty(0), {})
    best, tokens = torch.stack(rows).max(-1)
    for n, (row, s) in enumerate(zip(rows, sequences, strict=True)):
        if s.sampling.temperature:
            tokens[n : n + 1] = draw(row, s.sampling, s.generated)
    asked = {n: s.sampling.logprobs for n, s in enumerate(sequences) if s.sampling.logprobs is not None}
    return Picked(tokens, best, {n: report(logits[n], tokens[n : n + 1], top) for n, top in asked.items()})


def choose(logits: torch.Tensor, sequences: list[Sequence]) -> list[Choice]:
    """The same, read at once."""
    return pick(logits, sequences).read()


def adjust(row: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """Penalties over generated tokens and the bias map; the row itself stays as it is."""
    rules = sequence.sampling
    if rules.presence_penalty or rules.frequency_penalty:
        counts = Counter(sequence.tokens[sequence.answer :])
        if counts:
            ids = to_device(list(counts), row)
            times = to_device(list(counts.values()), row).to(row.dtype)
            row = row.index_add(0, ids, -(rules.presence_penalty + rules.frequency_penalty * times))
    if rules.logit_bias:
        ids = to_device(list(rules.logit_bias), row)
        row = row.index_add(0, ids, to_device(list(rules.logit_bias.values()), row).to(row.dtype))
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


def draw(row: torch.Tensor, rules: Sampling, index: int) -> torch.Tensor:
    """The token [1] that this request draws as its `index`-th."""
    probs, tokens = probabilities(row, rules)
    chance = np.random.Generator(np.random.Philox(key=(rules.seed or 0) % 2**64, counter=index)).random()
    sums = probs.cumsum(0)
    place = torch.searchsorted(sums, chance * sums[-1:], right=True)
    return tokens.gather(0, place.minimum((probs > 0).sum() - 1).clamp_min(0))


Report = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Log-probability of the chosen token [1]; of the most likely ones [top], and which they are [top]."""


def report(row: torch.Tensor, token: torch.Tensor, top: int) -> Report:
    """What is said about a chosen token [1]: under the unmodified model, row [V]."""
    logprobs = torch.log_softmax(row, -1)
    values, tokens = logprobs.topk(min(top, len(row)))
    return logprobs.gather(0, token), values, tokens


def to_device(values: list[Any], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values).to(like.device, non_blocking=True)


def to_host(values: torch.Tensor) -> torch.Tensor:
    """On its way: it may be read once the device has come so far."""
    return values.to("cpu", non_blocking=True)
