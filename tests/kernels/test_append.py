"""Appending in one launch against its steps in PyTorch: scales, bands, rotation, and what is stored where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.attention.turn import band_queries, equalise, rotate
from octavo.formats.base import PAGE
from octavo.formats.rotation import rotation_matrix
from octavo.kernels.append import _strided, append_rows, turn_back
from octavo.pages.bands import Turns

pytestmark = pytest.mark.usefixtures("device")

TOKENS, HEADS, KV_HEADS, SLOTS = 37, 6, 2, 5
ROUNDING = {torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""A 16-bit number's own, relative to the largest value of a row; both ways round once, at the end."""


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def make_turns(bands: int, d: int, *, rope: bool = True, tokens: int = TOKENS) -> Turns:
    """Any angles at all; channels turn in interleaved pairs, and the last eighth does not turn."""
    channels = torch.arange(d)
    partner = torch.where(channels < d - d // 8, channels ^ 1, channels)
    angles = 6 * torch.rand(2, tokens, d)
    reach = torch.randint(0, bands, (tokens,))
    reach[0] = bands - 1
    counts = torch.tensor([100, 200, 300])
    given = (angles.cos(), angles.sin(), partner.int()) if rope else (None, None, None)
    return Turns(bands, *given, reach, counts)


def append(dtype: torch.dtype, d: int, turns: Turns | None, *, turn: bool = False, scaled: bool = False,
           tokens: int = TOKENS) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:  # fmt: skip
    """(q, k, v, plain keys, plain values) by the kernel, and in float32 by PyTorch."""
    torch.manual_seed(d)
    q, k, v = (draw(tokens, h, d, dtype=dtype) for h in (HEADS, KV_HEADS, KV_HEADS))
    scale = 0.25 + 4 * torch.rand(KV_HEADS, d) if scaled else None
    places = torch.randperm(SLOTS * PAGE)[:tokens]
    slots, offsets = places // PAGE, places % PAGE
    plain = [torch.full((SLOTS, KV_HEADS, PAGE, d), torch.nan, dtype=dtype) for _ in range(2)]
    ours = append_rows(
        q, k, v, *plain, slots, offsets, turn_k=turn, turn_v=turn, scales=scale, keep=True, turns=turns
    )  # fmt: skip
    q, k, v = (x.float() for x in (q, k, v))
    if turns is not None:
        q = band_queries(q, replace(turns, counts=torch.zeros_like(turns.counts)))
    if scale is not None:
        q, k = equalise(q, k, scale)
    if turn:
        by = rotation_matrix(d).to(q.device)
        q, k, v = (rotate(x, by) for x in (q, k, v))
    pages = [torch.full_like(x, torch.nan, dtype=torch.float32) for x in plain]
    for page, rows in zip(pages, (k, v), strict=True):
        page[slots, :, offsets] = rows
    return (*ours, *plain), (q, k, v, *pages)


def check(found: tuple[Tensor, ...], right: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for ours, wanted in zip(found, right, strict=True):
        assert ours.shape == wanted.shape and ours.dtype == dtype
        most = wanted.nan_to_num().abs().amax(-1, keepdim=True)
        gap = (ours.float() - wanted).abs() - ROUNDING[dtype] * most
        assert torch.equal(ours.isnan(), wanted.isnan()) and not bool((gap > 0).any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("bands", [None, 1, 2, 3])
@pytest.mark.parametrize("treated", [False, True])
def test_values(bands: int | None, d: int, dtype: torch.dtype, treated: bool) -> None:
    turns = None if bands is None else make_turns(bands, d)
    check(*append(dtype, d, turns, turn=treated, scaled=treated), dtype)


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("bands", [None, 3])
def test_few_rows_of_many_channels(bands: int | None, tokens: int) -> None:
    """CTAs that are not full, and lanes with more channels than a load takes."""
    turns = None if bands is None else make_turns(bands, 512, tokens=tokens)
    check(*append(torch.float16, 512, turns, turn=True, scaled=True, tokens=tokens), torch.float16)


def test_rows_that_no_vector_load_can_read_are_refused() -> None:
    d = 128
    wide = draw(4, 6 * d + 1, dtype=torch.bfloat16)
    q = wide.as_strided((4, 6, d), (6 * d + 1, d, 1))
    with pytest.raises(AssertionError, match="aligned"):
        _strided(q)
    assert _strided(q[:1].as_strided((1, 6, d), (1, d, 1)))  # nobody steps along one token


@pytest.mark.parametrize("bands", [1, 2, 3])
@pytest.mark.parametrize("rope", [True, False])
def test_rows_are_counted_where_they_are_turned(bands: int, rope: bool) -> None:
    turns = make_turns(bands, 64, rope=rope)
    found, right = append(torch.bfloat16, 64, turns)
    check(found, right, torch.bfloat16)
    reads = [int((turns.reach >= band).sum()) for band in range(bands)] + [0] * (3 - bands)
    assert turns.counts.tolist() == [start + n for start, n in zip((100, 200, 300), reads, strict=True)]


def test_rows_of_a_wider_tensor() -> None:
    """Queries, keys and values may be slices of one projection."""
    d, turns = 64, make_turns(3, 64)
    whole = draw(TOKENS, HEADS + 2 * KV_HEADS, d, dtype=torch.bfloat16)
    q, k, v = whole.split((HEADS, KV_HEADS, KV_HEADS), 1)
    slots = torch.zeros(TOKENS, dtype=torch.long)
    pages = torch.zeros(1, KV_HEADS, PAGE, d, dtype=torch.bfloat16)
    settings: dict[str, Any] = {"turn_k": False, "turn_v": False, "turns": turns}
    found, _, _ = append_rows(q, k, v, pages, pages.clone(), slots, slots + torch.arange(TOKENS), **settings)
    right = band_queries(q, replace(turns, counts=torch.zeros_like(turns.counts)))
    check((found,), (right,), torch.bfloat16)
    assert torch.equal(pages[0, :, :TOKENS], k.transpose(0, 1))


@pytest.mark.parametrize("d", [64, 128, 256])
def test_turning_back_undoes_the_rotation(d: int) -> None:
    x = draw(TOKENS, HEADS, d, dtype=torch.float16)
    turned = rotate(x, rotation_matrix(d).to(x.device)).contiguous()
    check((turn_back(turned),), (x.float(),), torch.float16)


def test_an_angle_one_percent_off_is_noticed() -> None:
    turns = make_turns(3, 64)
    found, _ = append(torch.float16, 64, turns)
    assert turns.sin is not None
    _, other = append(torch.float16, 64, replace(turns, sin=turns.sin * 1.01))
    with pytest.raises(AssertionError):
        check(found, other, torch.float16)
