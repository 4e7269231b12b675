"""The decode kernels' own sources, on a CPU, against float64 attention on the same bytes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from . import emulated
from .cases import Shape, measure

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the kernels for the CPU")

TOLERANCE = 2e-2
"""Relative error of int8 arithmetic."""

FLOAT = 4e-3
"""The same of 16-bit arithmetic, outputs in bfloat16 included."""

FEW = Shape(lengths=(1, 65, 300))
AGENTS = Shape(lengths=(300,) * 5 + (65,), shared=3)
CASES = {
    "four bits": FEW,
    "sixteen rows of eight bits": Shape("turbo8", "q8_0", lengths=(65, 300), queries=4, sinks=True),
    "a trellis in slices": Shape("turbo3_tcq", "turbo2_tcq", 256, lengths=(65, 200), queries=4),
    "minima, a window": Shape("q5_1", "q5_1", 64, lengths=(65, 300), window=100),
    "more rows than a tile share pages": AGENTS,
    "maxima that rise": Shape("turbo8", "turbo8", lengths=(700,), loud=8.0),
    "eight bits and four, capped": replace(AGENTS, k="turbo8", v="q4_0", softcap=20.0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.mark.parametrize("name", CASES)
def test_kernels_emulated_equal_float64(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated.stand_in(monkeypatch, folder)
    assert measure(CASES[name], "cpu") < TOLERANCE


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("v", ["q8_0", "turbo8"])
def test_a_second_product_leaves_what_sixteen_bits_round(
    v: str, head_dim: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of probabilities against values whose own error is small; with one product it is 0.006 and more."""
    emulated.stand_in(monkeypatch, folder)
    assert measure(Shape("plain", v, head_dim, lengths=(700,)), "cpu") < FLOAT


@pytest.mark.parametrize("v", ["q4_0", "q5_0", "q5_1", "q6_0"])
def test_weights_have_all_eight_bits(v: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gains are negative too; with seven bits and a sign it is 0.012 and more with these numbers."""
    emulated.stand_in(monkeypatch, folder)
    assert measure(Shape("plain", v, lengths=(1300,), seed=5), "cpu") < 8e-3


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("k", ["q4_0", "q5_1", "q6_0", "turbo4"])
def test_offsets_of_keys_cost_nothing(
    k: str, queries: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query's own rounding is left; offsets wrong by 40 make it 0.012 and more."""
    emulated.stand_in(monkeypatch, folder)
    assert measure(Shape(k, "plain", lengths=(700,), queries=queries, seed=5), "cpu") < 8e-3


def test_warps_share_plain_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine complete ones behind packed ones, and an open one: more quarters than warps."""
    emulated.stand_in(monkeypatch, folder)
    assert measure(Shape("q8_0", "q8_0", lengths=(900, 130), young=9), "cpu") < FLOAT


def test_a_wrong_scale_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated.stand_in(monkeypatch, folder)
    assert measure(FEW, "cpu", spoil=1.1) > TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_warps_wait_for_all_they_need(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order they run and pages arrive."""
    emulated.stand_in(monkeypatch, folder, seed)
    assert measure(AGENTS, "cpu") < TOLERANCE
