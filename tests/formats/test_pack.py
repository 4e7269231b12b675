"""Packing loses nothing, and lanes own what the kernel says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequest
from octavo.formats import PAGE, PageCodec, get_format
from octavo.formats.pack import lane_order, pack, read_values, unpack

from .pages import HEAD_DIMS, LAYOUTS, QUANTISED, exists, gaussian

CASES = [(d, layout) for d in HEAD_DIMS for layout in LAYOUTS if exists(d, layout)]
few = settings(max_examples=3, deadline=None)


def some_bytes(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(("head_dim", "layout"), CASES)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@few
@given(seed=st.integers(0, 2**31), side=st.sampled_from("kv"))
def test_packing_is_a_bijection(bits: int, head_dim: int, layout: str, seed: int, side: str) -> None:
    codes = some_bytes(seed, 2, PAGE, head_dim) >> (8 - bits)
    data = pack(codes, bits, side, layout)
    assert data.shape == (2, PAGE * head_dim * bits // 8)
    assert torch.equal(unpack(data, bits, head_dim, side, layout), codes)
    other = some_bytes(seed + 1, *data.shape)
    assert torch.equal(pack(unpack(other, bits, head_dim, side, layout), bits, side, layout), other)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_read_values_looks_every_code_up(bits: int, layout: str) -> None:
    data = some_bytes(1, 3, PAGE * 128 * bits // 8)
    values = tuple((7 * i) % 255 - 127 for i in range(1 << bits))
    expected = torch.tensor(values, dtype=torch.int8)[unpack(data, bits, 128, "k", layout).long()]
    assert torch.equal(read_values(data, bits, 128, "k", layout, values), expected)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize(("head_dim", "layout"), CASES)
def test_every_code_byte_of_a_page_matters(name: str, head_dim: int, layout: str) -> None:
    """Any code bytes are a page: different ones decode to different whole numbers."""
    if head_dim % 32 and name.startswith("q"):
        pytest.skip("blocks are padded: some bytes stand for no value")
    codec = PageCodec(get_format(name), head_dim, "v", layout=layout)
    page = codec.encode(gaussian(1, head_dim)).repeat(9, 1)
    start, stop = codec.sections()["codes"]
    step = (stop - start) // 8
    for i in range(8):
        page[i + 1, start + step * i + i] ^= 1 << i
    decoded = codec.decode(page).flatten(1)
    assert len(torch.unique(decoded, dim=0)) == 9


@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_lanes_share_a_page_among_them(head_dim: int, side: str) -> None:
    order = lane_order(head_dim, side)
    assert order.shape == (32, 2 * head_dim)
    assert torch.equal(order.flatten().sort().values, torch.arange(PAGE * head_dim))


def test_head_dims_without_tiles_are_refused_by_number() -> None:
    for refused in (lambda: lane_order(96, "k"), lambda: pack(some_bytes(0, 1, 64, 96), 8, "k", "tile")):
        with pytest.raises(InvalidRequest, match="no tile layout for head_dim 96"):
            refused()
