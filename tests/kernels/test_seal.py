"""Pages packed by the kernels hold the bytes the codec makes, but for near ties."""

from __future__ import annotations

import re

import pytest
import torch

from octavo.errors import InvalidRequest
from octavo.formats.codec import PageCodec
from octavo.formats.gains import GAIN_RULES
from octavo.formats.registry import get_format
from octavo.formats.trellis import load_table
from octavo.kernels.compile import compile_kernel, sources
from octavo.kernels.seal import seal_pages, seal_sources
from octavo.kernels.variants import HEAD_DIMS, KERNEL_FORMATS
from octavo.pages.store import GroupPool
from tests.kernels.pools import MOVES, NEAR_TIES_TRELLIS, check, compile_all, make_pool, sealed, slots

PACKED_FORMATS = KERNEL_FORMATS[1:]


GAIN_FORMATS = ("turbo4", "turbo3", "turbo2", "turbo3_tcq")


@pytest.fixture(scope="module")
def compiled() -> None:
    """Kernels of the tests over all formats, compiled side by side."""
    pools = [make_pool(f, d, device="cpu") for f in PACKED_FORMATS for d in HEAD_DIMS]
    pools += [gain_pool(format, gain, "cpu") for format in GAIN_FORMATS for gain in GAIN_RULES]
    codecs = [(codec, pool.store.dtype) for pool in pools for (codec, *_) in pool.store.codecs.values()]
    wanted = [source for codec, dtype in codecs for source in seal_sources(codec, dtype)]
    compile_all([(source.file, dict(source.defines)) for source in wanted])


def gain_pool(format: str, gain: str, device: str) -> GroupPool:
    settings = {"k_gain": gain, "v_gain": gain, "centre": False}
    return make_pool(format, 128, dtype=torch.float16, device=device, **settings)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("format", PACKED_FORMATS)
@pytest.mark.usefixtures("compiled")
def test_bytes_equal_the_codecs(format: str, head_dim: int) -> None:
    torch.manual_seed(0)
    pool = make_pool(format, head_dim, layers=2)
    seal_pages(pool, *slots())
    check(pool)


@pytest.mark.gpu
@pytest.mark.parametrize("gain", GAIN_RULES)
@pytest.mark.parametrize("format", GAIN_FORMATS)
@pytest.mark.usefixtures("compiled")
def test_gain_rules(format: str, gain: str) -> None:
    torch.manual_seed(1)
    pool = gain_pool(format, gain, "cuda")
    seal_pages(pool, *slots())
    check(pool)


@pytest.mark.gpu
def test_the_check_sees_a_gain_off_by_a_hundredth() -> None:
    pool = make_pool("turbo4", 128)
    seal_pages(pool, *slots())
    with pytest.raises(AssertionError):
        check(pool, spoil=1.01)


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["q8_0", "q5_1", "q4_0", "turbo8", "turbo3", "turbo2_tcq"])
def test_zeros_ties_and_numbers_beyond_fp16(format: str) -> None:
    torch.manual_seed(2)
    pool = make_pool(format, 128)
    for pages in (pool.k_plain, pool.v_plain):
        pages[0, 0, 0] = 0.0
        pages[0, 1, 0, 5] = 0.0
        pages[0, 1, 0, 6, ::2], pages[0, 1, 0, 6, 1::2] = 1.5, -1.5
        pages[0, 3, 1, 7, 9] = float("nan")
        pages[0, 3, 1, 8, 9], pages[0, 3, 1, 9, 3] = float("inf"), -3e38
    seal_pages(pool, *slots())
    for side in ("k", "v"):
        _, found, want = sealed(pool, side)
        assert float((found != want).float().mean()) <= NEAR_TIES_TRELLIS, side
        assert bool(pool.store.codecs[side][0].decode(found).isfinite().all()), side


@pytest.mark.gpu
def test_a_side_that_stays_plain_is_copied() -> None:
    pool = make_pool("turbo3_tcq:bf16", 128, layers=2)
    seal_pages(pool, *slots())
    check(pool)
    _, found, want = sealed(pool, "v")
    assert torch.equal(found, want)


@pytest.mark.gpu
def test_turns_and_full_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pages than fit the scratch are walked in turns; each warp has several pages."""
    monkeypatch.setattr("octavo.kernels.seal.STREAM_BYTES", 1 << 17)
    monkeypatch.setattr("octavo.kernels.seal.RIDE_BYTES", 1 << 18)
    torch.manual_seed(3)
    pool = make_pool("turbo2_tcq:turbo4_tcq", 128, layers=2)
    seal_pages(pool, *slots())
    check(pool)


@pytest.mark.gpu
def test_a_pool_seals_by_its_sealer() -> None:
    torch.manual_seed(4)
    pool = make_pool("q4_0", 64)
    pool.sealer = seal_pages
    pool.seal(list(MOVES))
    check(pool)


def test_slots_are_checked_before_the_device_is_asked() -> None:
    pool = make_pool("q8_0", 64, device="cpu")
    plain, packed = slots("cpu")
    with pytest.raises(InvalidRequest, match="int64"):
        seal_pages(pool, plain.int(), packed)
    with pytest.raises(InvalidRequest, match=r"\[2\]"):
        seal_pages(pool, plain, packed[:2])
    seal_pages(pool, plain[:0], packed[:0])


def test_a_sealer_stands_in_for_the_codecs() -> None:
    pool, seen = make_pool("q8_0", 64, device="cpu"), []
    pool.sealer = lambda own, plain, packed: seen.append((own is pool, plain.tolist(), packed.tolist()))
    pool.seal(list(MOVES))
    assert seen == [(True, [1, 3, 0], [3, 0, 2])]
    assert bool((pool.packed["k"][0] == 0xAB).all())


def test_kernels_of_a_side() -> None:
    codec = PageCodec(get_format("turbo3_tcq"), 128, "v", layout="tile", gain="unbiased")
    files = [source.file for source in seal_sources(codec, torch.bfloat16)]
    assert files == ["seal.cu", "viterbi.cu", "viterbi_fit.cu"]
    plain = PageCodec(get_format("q4_0"), 128, "v", layout="tile", gain="unbiased")
    assert [source.file for source in seal_sources(plain, torch.bfloat16)] == ["seal.cu"]
    assert dict(seal_sources(plain, torch.bfloat16)[0].defines)["RULE"] == 0, "q4_0 has no gain rule"


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_levels_in_the_source_are_those_of_the_tables(bits: int) -> None:
    text = re.sub(r"\s", "", sources()["viterbi_levels.cuh"])
    written = re.search(rf"LEVELS{bits}\[\d+\]=\{{([-,\d]+)\}}", text)
    assert written is not None
    assert [int(n) for n in written[1].split(",")] == load_table(bits)[0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("format", PACKED_FORMATS)
def test_compiles(format: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format once a side, head dims and gain rules in turn, for the oldest architecture and Hopper."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    n = PACKED_FORMATS.index(format)
    for i, side in enumerate(("k", "v")):
        codec = PageCodec(
            get_format(format),
            HEAD_DIMS[(n + i) % 4],
            side,
            layout="tile",
            gain=GAIN_RULES[(n + i) % 3],
            centred=side == "k",
        )
        for source in seal_sources(codec, torch.bfloat16):
            assert compile_kernel(source.file, dict(source.defines), ("sm_80", "sm_90")[(n + i) % 2])
