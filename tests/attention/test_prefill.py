"""A prefill chunk's attention, kernels and fused attention done in PyTorch, against softmax written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.attention import fused, prefill
from octavo.attention.prefill import attend_chunk, plan_past
from octavo.formats.base import PAGE
from octavo.pages.segment import Segment

HEADS, KV_HEADS, D = 4, 2, 16
CPU = torch.device("cpu")
NOBODY: Any = None
"""Pages: what is stored is in the tests' hands."""


def attend(monkeypatch: pytest.MonkeyPatch, computed: int, n: int, window: int | None,
           softcap: float | None, sinks: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By `attend_chunk`, stretches of three pages, and in float64."""
    torch.manual_seed(0)
    pages = -(-(computed + n) // PAGE)
    q, k, v = (torch.randn(h, pages * PAGE, D) for h in (HEADS, KV_HEADS, KV_HEADS))
    q = q[:, computed : computed + n]

    def unpack(_: Any, addresses: Tensor, side: str) -> Tensor:
        at = (addresses.long()[:, None] * PAGE + torch.arange(PAGE)).flatten()
        return (k if side == "k" else v)[:, at]

    monkeypatch.setattr(prefill, "unpack_pages", unpack)
    monkeypatch.setattr(prefill, "blend", blend)
    monkeypatch.setattr(prefill, "fused_attention", lambda *_: fused.by_tiles)
    monkeypatch.setattr(prefill, "windowed_attention", lambda *_: fused.by_tiles_in_window)
    monkeypatch.setattr(prefill, "STRETCH", 3)
    monkeypatch.setattr(fused, "ROWS", 50)
    first = 0 if window is None else max(0, computed - window + 1) // PAGE
    segment = Segment(0, n, computed, first, np.arange(first, pages, dtype=np.int64))
    own = [x[:, computed : computed + n].transpose(0, 1) for x in (k, v)]
    past = plan_past(segment, window, CPU)
    out = attend_chunk(q.transpose(0, 1)[None], *own, NOBODY, past, 0.3, softcap, sinks)
    wide = [x.double().repeat_interleave(HEADS // KV_HEADS, 0)[:, : computed + n] for x in (k, v)]
    scores = q.double() @ wide[0].transpose(1, 2) * 0.3
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    gap = (computed + torch.arange(n))[:, None] - torch.arange(computed + n)
    scores.masked_fill_((gap < 0) | (gap >= (window or math.inf)), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, n, 1)), -1)
    weights = scores.softmax(-1)[..., : computed + n]
    return out, (weights @ wide[1]).transpose(0, 1)


def blend(acc: Tensor, lse: Tensor, out: Tensor, other: Tensor) -> None:
    total, both = prefill.merge((acc, lse), (out, other))
    acc.copy_(total)
    lse.copy_(both)


@pytest.mark.parametrize("computed", [0, 1, 63, 64, 65, 200, 500])
@pytest.mark.parametrize("n", [9, 64, 300])
@pytest.mark.parametrize("window", [None, 1, 2, 63, 64, 65, 128, 400, 5000])
def test_windows_and_caps(computed: int, n: int, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is stored yet, and where a window is wider than all there is."""
    for softcap in (None, 5.0):
        for sinks in (None, torch.tensor([-1.0, 0.0, 2.0, 9.0])):
            ours, right = attend(monkeypatch, computed, n, window, softcap, sinks)
            assert float((ours - right).abs().max()) < 2e-6, (softcap, sinks)


def test_a_window_one_token_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, right = attend(monkeypatch, 200, 64, 65, None, None)
    other, _ = attend(monkeypatch, 200, 64, 64, None, None)
    assert float((other - right).abs().max()) > 1e-3


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_value_that_is_no_number_is_not_hidden(softcap: float | None) -> None:
    """The engine ends a request whose logits are not finite; attention must not make numbers of them."""
    q, k, v = (torch.randn(h, 40, D) for h in (HEADS, KV_HEADS, KV_HEADS))
    k[0, 7] = torch.nan
    out, _ = fused.scored(q, k, v, 0.3, offset=0, window=64, softcap=softcap)
    assert bool(out[:2, 7:].isnan().all()) and bool(out[2:].isfinite().all())


def test_a_kernel_that_does_not_take_a_head_dim_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """But a device that is full for a moment decides nothing for good."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device, **k: zeros(*shape, **k))
    asked: list[str] = []

    def kernel(name: str, error: Exception | None) -> None:
        def run(*_: object) -> None:
            asked.append(name)
            if error is not None:
                raise error

        monkeypatch.setattr(fused, name, run)

    kernel("cudnn", RuntimeError("no such head dim"))
    kernel("flash", None)
    assert fused.fused_attention.__wrapped__(96, torch.float16) is fused.flash and asked == ["cudnn", "flash"]
    kernel("flash", RuntimeError("no such head dim"))
    kernel("flash_in_window", RuntimeError("no such head dim"))
    assert fused.fused_attention.__wrapped__(96, torch.float16) is fused.by_tiles
    assert fused.windowed_attention.__wrapped__(96, torch.float16) is fused.by_tiles_in_window
    kernel("flash_in_window", torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError):
        fused.windowed_attention.__wrapped__(96, torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("window", [1, 64, 65, 300, 5000])
def test_the_fused_window_is_the_one_written_out(window: int, head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(h, n, head_dim, device="cuda").to(dtype) for h, n in ((4, 200), (2, 520), (2, 520))
    )
    found = fused.windowed_attention(head_dim, dtype)
    assert found is fused.flash_in_window
    ours, right = found(q, k, v, 0.1, window), fused.by_tiles_in_window(q, k, v, 0.1, window)
    assert float((ours[0].float() - right[0].float()).abs().max()) < 3e-2
    assert float((ours[1] - right[1]).abs().max()) < 2e-2
