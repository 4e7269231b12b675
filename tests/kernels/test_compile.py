"""CUDA sources compile, and what is compiled stays on disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from octavo.errors import UnsupportedModel
from octavo.kernels import compile as compiling
from octavo.kernels.compile import KernelsUnavailable, compile_kernel
from octavo.kernels.variants import KERNEL_FORMATS, SHARED_LIMIT, choose

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'cuda-core[cu13]'")

COVER = [
    ("turbo4", "turbo4", 128, 4, {}),
    ("turbo8", "q4_0", 128, 16, {}),
    ("q5_1", "q5_1", 64, 4, {}),
    ("turbo3_tcq", "turbo2", 128, 4, {"softcap": True}),
    ("plain", "turbo3", 256, 16, {"half": True}),
    ("plain", "plain", 128, 8, {}),
]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    return tmp_path / "kernels"


@pytest.mark.parametrize(("k", "v", "head_dim", "rows", "settings"), COVER)
def test_a_covering_set_compiles(
    k: str, v: str, head_dim: int, rows: int, settings: dict, empty_cache: Path
) -> None:
    variant = choose(k, v, head_dim, rows, centred=k != "plain", **settings)
    assert compile_kernel("decode.cu", variant.defines(), "sm_90").startswith(b"\x7fELF")


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_older_architectures_compile(arch: str, empty_cache: Path) -> None:
    variant = choose("turbo4", "q8_0", 128, 4, centred=True)
    assert compile_kernel("decode.cu", variant.defines(), arch)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
@pytest.mark.parametrize(("k", "v"), list(product(KERNEL_FORMATS, repeat=2)))
def test_every_variant_compiles(k: str, v: str, head_dim: int, rows: int, empty_cache: Path) -> None:
    variant = choose(k, v, head_dim, rows, centred=k != "plain")
    assert variant.shared_bytes <= SHARED_LIMIT
    assert compile_kernel("decode.cu", variant.defines(), "sm_90")


def test_what_is_on_disk_is_not_compiled_again(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernel("read.cu", {"HALF": 0}, "sm_90")
    monkeypatch.setattr(compiling, "_compile", lambda *_: pytest.fail("compiled again"))
    assert compile_kernel("read.cu", {"HALF": 0}, "sm_90") == first


def test_headers_of_the_working_directory_are_not_taken(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC looks there first unless told not to."""
    (tmp_path / "common.cuh").write_text("#error not ours\n")
    monkeypatch.chdir(tmp_path)
    assert compile_kernel("read.cu", {"HALF": 0}, "sm_90")


def test_other_macros_and_architectures_are_other_files(empty_cache: Path) -> None:
    for half, arch in ((0, "sm_90"), (1, "sm_90"), (0, "sm_80")):
        compile_kernel("read.cu", {"HALF": half}, arch)
    assert len(list(empty_cache.iterdir())) == 3


def test_a_damaged_file_is_compiled_anew(empty_cache: Path) -> None:
    first = compile_kernel("read.cu", {"HALF": 0}, "sm_90")
    (file,) = empty_cache.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    assert compile_kernel("read.cu", {"HALF": 0}, "sm_90") == first


def test_many_at_once_leave_one_whole_file(empty_cache: Path) -> None:
    with ThreadPoolExecutor(4) as workers:
        made = list(workers.map(lambda _: compile_kernel("read.cu", {"HALF": 0}, "sm_90"), range(4)))
    assert len(set(made)) == 1
    assert len(list(empty_cache.iterdir())) == 1


def test_a_refused_source_names_the_complaint(empty_cache: Path) -> None:
    with pytest.raises(KernelsUnavailable, match=r"NVRTC refused decode\.cu for sm_90"):
        compile_kernel("decode.cu", {"KF": 7}, "sm_90")


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="head_dim 80 has no kernel"):
        choose("turbo4", "turbo4", 80, 4)
    with pytest.raises(UnsupportedModel, match="'f32' has no kernel"):
        choose("turbo4", "f32", 128, 4)
