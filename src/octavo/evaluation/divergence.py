"""KL divergence between two next-token distributions over the whole vocabulary.

Logits are float32; exponentials are summed to float64. With e_i = exp(r_i − max r) and Z = Σ e_i,
KL(r ‖ c) = Σ e_i (r_i − c_i) / Z − (lse r − lse c): no log-probability is ever rounded to float32, so two
equal runs give 0 and errors stay near 1e-7 nats whatever the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["TILE_BYTES", "Divergence", "Surprise", "divergence", "surprise", "tiles"]

TILE_BYTES = 256 * 2**20
"""Most memory that logits and what is made of them take at a time."""

_STRETCH = 512

_COPIES = 6
"""Float32 copies of a tile of logits alive at once: two logits, exponentials, differences, temporaries."""


@dataclass(frozen=True)
class Surprise:
    """Of one distribution, per row: nll [n] of the targets and entropy [n], in nats, float32."""

    nll: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class Divergence:
    """Of a candidate against a reference, per row: kld [n] in nats, same argmax [n] (bool), nll [n]."""

    kld: Tensor
    same_top: Tensor
    nll: Tensor


def surprise(logits: Tensor, targets: Tensor) -> Surprise:
    """logits [n, V] float32 and the tokens that followed, targets [n]."""
    shifted, exps, total = _softmax_parts(logits)
    entropy = total.log() - _sum(exps * shifted) / total
    return Surprise(_nll(shifted, total, targets), entropy.float())


def divergence(reference: Tensor, candidate: Tensor, targets: Tensor) -> Divergence:
    """KL(reference ‖ candidate) of logits [n, V] float32, and the candidate's surprise at targets [n]."""
    _, exps, total = _softmax_parts(reference)
    shifted, _, other = _softmax_parts(candidate)
    gap = _sum(exps * (reference - candidate)) / total
    normaliser = (reference.amax(-1).double() + total.log()) - (candidate.amax(-1).double() + other.log())
    same = reference.argmax(-1) == candidate.argmax(-1)
    return Divergence((gap - normaliser).float(), same, _nll(shifted, other, targets))


def _softmax_parts(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits less their maximum, exponentials of those [n, V] float32, and their sum [n] float64."""
    shifted = logits - logits.amax(-1, keepdim=True)
    exps = shifted.exp()
    return shifted, exps, _sum(exps)


def _sum(values: Tensor) -> Tensor:
    """values [n, V] float32 → [n] float64: in float32 over short stretches, in float64 over those.

    Three times as fast as all in float64, and as exact: a stretch errs by a few parts in 1e8.
    """
    even = values.shape[1] // _STRETCH * _STRETCH
    stretches = values[:, :even].reshape(len(values), -1, _STRETCH).sum(-1)
    return stretches.sum(-1, dtype=torch.float64) + values[:, even:].sum(-1, dtype=torch.float64)


def _nll(shifted: Tensor, total: Tensor, targets: Tensor) -> Tensor:
    chosen = shifted.gather(-1, targets[:, None]).squeeze(-1)
    return (total.log() - chosen.double()).float()


def tiles(rows: int, vocab: int) -> Iterator[tuple[int, int]]:
    """Row ranges whose logits fit in TILE_BYTES."""
    size = max(1, TILE_BYTES // (4 * _COPIES * vocab))
    return ((start, min(rows, start + size)) for start in range(0, rows, size))
