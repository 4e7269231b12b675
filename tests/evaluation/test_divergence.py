"""KL divergence against float64 by hand."""

from __future__ import annotations

import pytest
import torch

from octavo.evaluation import divergence as module
from octavo.evaluation.divergence import divergence, surprise, tiles


@pytest.mark.parametrize("vocab", [7, 500, 50_000])
@pytest.mark.parametrize("scale", [0.01, 3.0, 30.0])
def test_equals_float64(vocab: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    reference = scale * torch.randn(5, vocab, generator=generator) + 100
    candidate = reference + 0.05 * torch.randn(5, vocab, generator=generator)
    targets = torch.randint(vocab, (5,), generator=generator)
    p, q = reference.double().log_softmax(-1), candidate.double().log_softmax(-1)
    found = divergence(reference, candidate, targets)
    assert (found.kld - (p.exp() * (p - q)).sum(-1)).abs().max() < 1e-6
    assert torch.equal(found.same_top, p.argmax(-1) == q.argmax(-1))
    assert (found.nll + q.gather(-1, targets[:, None])[:, 0]).abs().max() < 3e-5
    told = surprise(reference, targets)
    assert (told.entropy + (p.exp() * p).sum(-1)).abs().max() < 3e-5
    assert (told.nll + p.gather(-1, targets[:, None])[:, 0]).abs().max() < 3e-5


def test_equal_logits_give_exactly_zero() -> None:
    logits = 10 * torch.randn(9, 1000, generator=torch.Generator().manual_seed(1))
    found = divergence(logits, logits.clone(), torch.zeros(9, dtype=torch.long))
    assert torch.equal(found.kld, torch.zeros(9)) and bool(found.same_top.all())


def test_tiles_cover_all_rows_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE_BYTES", 4 * 6 * 1000 * 3)
    assert list(tiles(8, 1000)) == [(0, 3), (3, 6), (6, 8)]
    assert list(tiles(2, 10**9)) == [(0, 1), (1, 2)]
