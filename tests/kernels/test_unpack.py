"""Pages unpacked by the kernel equal those the codec decodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from octavo.errors import InvalidRequest, UnsupportedModel
from octavo.formats.base import Side
from octavo.formats.codec import PageCodec
from octavo.formats.registry import get_format
from octavo.kernels import unpack
from octavo.kernels.compile import compile_kernel
from octavo.kernels.unpack import side_defines, stored_format, unpack_pages
from octavo.kernels.variants import HEAD_DIMS, KERNEL_FORMATS
from octavo.pages.store import GroupPool
from tests.kernels import emulated
from tests.kernels.pools import compile_all, make_pool

ADDRESSES = (2, ~1, 0, 3, ~0, ~3, 2)
"""Packed and plain pages, out of order, one of them twice."""


def expected(pool: GroupPool, side: Side) -> torch.Tensor:
    plain = (pool.k_plain if side == "k" else pool.v_plain)[0]
    packed = pool.packed[side][0]
    codec = pool.store.codecs[side][0]
    pages = [codec.decode(packed[a], plain.dtype) if a >= 0 else plain[~a] for a in ADDRESSES]
    return torch.stack(pages, 1).flatten(1, 2)


def encode(pool: GroupPool) -> None:
    """What GroupPool.seal does by the codecs: slot n to slot n."""
    pool.seal([(n, n) for n in range(4)])


def check(pool: GroupPool) -> None:
    """Both sides of `pool`, unpacked, are what the codec decodes, bit for bit."""
    if pool.store.packs:
        encode(pool)
    addresses = torch.tensor(ADDRESSES, dtype=torch.int32, device=pool.device)
    for side in ("k", "v"):
        want = expected(pool, side)
        out = torch.full_like(want, float("nan"))
        unpack_pages(pool.layer(0), addresses, side, out)
        assert torch.equal(out, want), side


DTYPES = dict(zip(HEAD_DIMS, (torch.float16, torch.bfloat16) * 2, strict=True))
"""The 16-bit dtypes in turn, by head dim."""


@pytest.fixture(scope="module")
def compiled() -> None:
    """Kernels of the first test, compiled side by side."""
    defines = []
    for format in KERNEL_FORMATS:
        for head_dim, dtype in DTYPES.items():
            pool = make_pool(format, head_dim, dtype=dtype, device="cpu")
            defines += [side_defines(codec, dtype) for (codec, *_) in pool.store.codecs.values()]
    compile_all([("unpack.cu", one) for one in defines])


@pytest.mark.gpu
@pytest.mark.parametrize(("head_dim", "dtype"), DTYPES.items())
@pytest.mark.parametrize("format", KERNEL_FORMATS)
@pytest.mark.usefixtures("compiled")
def test_pages_equal_what_the_codec_decodes(format: str, head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check(make_pool(format, head_dim, dtype=dtype))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unpack")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the kernel for the CPU")
@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_the_source_on_a_cpu_does_what_the_codec_does(
    format: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "load_kernel", emulated.load_kernel(folder))
    monkeypatch.setattr(unpack, "multiprocessors", lambda: 1)
    torch.manual_seed(0)
    check(make_pool(format, 64, dtype=DTYPES[64], device="cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("centre", [True, False])
def test_a_copy_of_plain_pages_beside_packed_ones(centre: bool) -> None:
    pool = make_pool("turbo4:bf16", 128, centre=centre)
    encode(pool)
    addresses = torch.tensor(ADDRESSES, dtype=torch.int32, device="cuda")
    for side in ("k", "v"):
        assert torch.equal(unpack_pages(pool.layer(0), addresses, side), expected(pool, side))


@pytest.mark.gpu
def test_no_pages_are_no_tokens() -> None:
    pool = make_pool("q8_0", 64)
    none = torch.empty(0, dtype=torch.int32, device="cuda")
    assert unpack_pages(pool.layer(0), none, "k").shape == (2, 0, 64)


def test_what_the_kernel_cannot_take_is_refused() -> None:
    pages = make_pool("q8_0", 64, device="cpu").layer(0)
    two = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(InvalidRequest, match="int32"):
        unpack_pages(pages, two.long(), "k")
    with pytest.raises(InvalidRequest, match=r"\[2, 128, 64\]"):
        unpack_pages(pages, two, "k", torch.empty(2, 64, 64, dtype=torch.bfloat16))
    rows = PageCodec(get_format("q8_0"), 64, "k")
    with pytest.raises(InvalidRequest, match="rows"):
        stored_format(rows, torch.bfloat16)
    with pytest.raises(UnsupportedModel, match="float32"):
        stored_format(rows, torch.float32)
    with pytest.raises(UnsupportedModel, match="head_dim 80"):
        stored_format(PageCodec(get_format("q8_0"), 80, "k"), torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("format", KERNEL_FORMATS)
def test_compiles(format: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format once a side, head dims in turn, for the oldest architecture and Hopper."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    n = KERNEL_FORMATS.index(format)
    for i, side in enumerate(("k", "v")):
        codec = PageCodec(
            get_format(format), HEAD_DIMS[(n + i) % 4], side, layout="tile", centred=side == "k" and n > 0
        )
        arch = ("sm_80", "sm_90")[(n + i) % 2]
        assert compile_kernel("unpack.cu", side_defines(codec, torch.bfloat16), arch)
