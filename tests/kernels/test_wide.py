"""Wide runs: up to 128 query rows read a page that is unpacked once. The kernel on a CPU, and on a GPU."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo.errors import UnsupportedModel
from octavo.kernels.compile import compile_kernel
from octavo.kernels.variants import KERNEL_FORMATS, SHARED_LIMIT
from octavo.kernels.wide import HOPPER, choose_wide

from . import emulated
from .cases import Shape, measure

FLOAT, INT8 = 3e-3, 1.5e-2
"""Relative error of 16-bit arithmetic, and of the 8-bit arithmetic of narrow runs."""

AGENTS = Shape(lengths=(200,) * 9 + (65,), shared=2, wide=33)
"""36 rows share two pages; what each has of its own goes through narrow runs."""
ALONE = Shape(lengths=(300,), queries=10, wide=1)
"""One sequence's drafts, the open page among what they share."""

CASES = {
    "four bits": AGENTS,
    "eight bits and a trellis": replace(AGENTS, k="turbo8", v="turbo3_tcq"),
    "minima, head_dim 64": replace(AGENTS, k="q5_1", v="q5_1", head_dim=64),
    "plain values": replace(AGENTS, k="q4_0", v="plain"),
    "the open page": ALONE,
    "a window": replace(ALONE, lengths=(400,), window=100),
    "a cap, sinks": replace(ALONE, softcap=20.0, sinks=True),
    "more rows than a tile": replace(ALONE, queries=50, lengths=(300, 90)),
    "more pages than tiles": replace(ALONE, lengths=(1500,)),
    "maxima that rise": replace(ALONE, lengths=(700,), loud=8.0),
    "float16": replace(ALONE, dtype=torch.float16),
}
FORMATS = {
    f"{f}, head_dim {d}": replace(AGENTS, k=f, v=f, head_dim=d) for f in KERNEL_FORMATS for d in (64, 128)
}
LONG = {"lengths of all kinds": Shape(lengths=(1, 64, 700, 2000, 4095), queries=1, group=8, wide=8)}
MIXED = {
    "32 agents": Shape(lengths=(4095,) * 32, shared=60, wide=33),
    "wide and narrow": Shape(lengths=(1500, 1437, 900, 1500) * 4, shared=12, wide=33),
}
"""Narrow runs read packed pages too."""
emulate = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the kernels for the CPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wide")


@emulate
@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in FORMATS)])
def test_emulated_it_equals_float64(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated.stand_in(monkeypatch, folder)
    assert measure((CASES | FORMATS)[name], "cpu") < FLOAT


@emulate
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_warps_wait_for_all_they_need(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated.stand_in(monkeypatch, folder, seed)
    for shape in (AGENTS, CASES["more pages than tiles"]):
        assert measure(shape, "cpu") < FLOAT


@emulate
def test_a_wrong_scale_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated.stand_in(monkeypatch, folder)
    assert measure(ALONE, "cpu", spoil=1.02) > FLOAT


@pytest.mark.parametrize("pair", ["turbo4:turbo4", "turbo8:turbo3_tcq", "q5_1:plain"])
def test_it_compiles_for_hopper(pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'cuda-core[cu13]'")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    variant = choose_wide(*pair.split(":"), 128, shared_limit=SHARED_LIMIT, centred=True)
    assert compile_kernel("wide.cu", variant.defines(), "sm_90a").startswith(b"\x7fELF")


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("k", KERNEL_FORMATS)
@pytest.mark.parametrize("v", KERNEL_FORMATS)
def test_every_pair_fits_shared_memory(k: str, v: str, head_dim: int) -> None:
    variant = choose_wide(k, v, head_dim, shared_limit=SHARED_LIMIT, centred=k != "plain")
    assert variant.shared_bytes <= SHARED_LIMIT and variant.stages >= 2


def test_other_head_dims_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="no kernel for head_dim 256"):
        choose_wide("turbo4", "turbo4", 256, shared_limit=SHARED_LIMIT)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CASES, *FORMATS, *LONG, *MIXED])
def test_on_the_gpu_it_equals_float64(name: str) -> None:
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("wide runs need Hopper")
    shape = (CASES | FORMATS | LONG | MIXED)[name]
    assert measure(shape) < (INT8 if name in MIXED else FLOAT)
