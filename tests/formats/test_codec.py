"""Pages: sizes, sections, edges, centring, and both layouts saying the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import octavo.formats
from octavo.errors import InvalidRequest, UnknownName
from octavo.formats import (
    PAGE,
    PageCodec,
    base,
    format_names,
    gains,
    get_format,
    pack,
    rotation,
    tile,
    trellis,
    turbo,
    viterbi,
)

from .pages import HEAD_DIMS, LAYOUTS, QUANTISED, exists, gaussian, relative_error

# Bits per value at head_dim 128: the ladder's promise.
BITS = {
    "plain": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q6_0": 6.5, "q5_1": 6, "q5_0": 5.5, "q4_0": 4.5,
    "turbo8": 8.125, "turbo4": 4.125, "turbo3": 3.125, "turbo2": 2.125,
    "turbo4_tcq": 4.125, "turbo3_tcq": 3.125, "turbo2_tcq": 2.125,
}  # fmt: skip


def test_what_the_room_exports_exists() -> None:
    for module in (octavo.formats, base, gains, pack, rotation, tile, trellis, turbo, viterbi):
        assert all(hasattr(module, name) for name in module.__all__)


def test_the_names_are_the_ladder() -> None:
    assert set(format_names()) == set(BITS)
    with pytest.raises(UnknownName, match="did you mean 'turbo3_tcq'"):
        get_format("turbo3tcq")


@pytest.mark.parametrize("name", BITS)
def test_bits_per_value_count_every_byte(name: str) -> None:
    format = get_format(name)
    extra = 0.125 if name.startswith("turbo") else 0
    for head_dim in (128, 256, 512):
        assert format.bits_per_value(head_dim) == BITS[name]
    assert format.bits_per_value(64) == format.bits_per_value(192) == BITS[name] + extra
    for head_dim in HEAD_DIMS:
        codec = PageCodec(format, head_dim, "v")
        page = codec.encode(gaussian(1, head_dim))
        assert codec.decode(page).is_contiguous()
        assert page.shape == (1, format.nbytes(head_dim))
        assert format.nbytes(head_dim) % 16 == 0
        assert format.bits_per_value(head_dim) == 8 * page.numel() / (PAGE * head_dim)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("centred", [False, True])
def test_sections_tile_the_page(name: str, centred: bool) -> None:
    for head_dim in HEAD_DIMS:
        codec = PageCodec(get_format(name), head_dim, "k", centred=centred)
        ranges = list(codec.sections().values())
        assert all(start % 16 == 0 for start, _ in ranges)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(ranges))
        assert 0 <= codec.nbytes - ranges[-1][1] < 16
        assert codec.encode(gaussian(2, head_dim)).shape == (2, codec.nbytes)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_both_layouts_mean_the_same_values(name: str, side: str, head_dim: int) -> None:
    x = gaussian(2, head_dim)
    format = get_format(name)
    rows, tile = (PageCodec(format, head_dim, side, layout=layout, centred=True) for layout in LAYOUTS)
    assert torch.equal(rows.decode(rows.encode(x)), tile.decode(tile.encode(x)))


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [16, 80, 128, 192])
def test_pages_do_not_depend_on_their_company(name: str, layout: str, head_dim: int) -> None:
    if not exists(head_dim, layout):
        pytest.skip("no tiles")
    x = gaussian(3, head_dim)
    codec = PageCodec(get_format(name), head_dim, "v", layout=layout, gain="unbiased")
    together = codec.encode(x)
    assert torch.equal(together, torch.cat([codec.encode(page[None]) for page in x]))
    assert torch.equal(codec.decode(together)[1], codec.decode(together[1:2])[0])


@pytest.mark.parametrize("name", QUANTISED)
def test_edges_decode_to_something_finite_and_close(name: str) -> None:
    x = torch.zeros(5, PAGE, 128)
    x[1] = 3.0
    x[2] = gaussian(1, 128)[0]
    x[2, 5, 7] = 65504.0
    x[3] = gaussian(1, 128)[0] * 1e-40
    x[4] = 65504.0 * gaussian(1, 128)[0].sign()
    for centred in (False, True):
        codec = PageCodec(get_format(name), 128, "k", centred=centred)
        y = codec.decode(codec.encode(x))
        assert y.isfinite().all()
        assert (y[0] == 0).all()
        assert (y[3].abs() < 1e-6).all()
        assert relative_error(x[4], y[4]) < 0.5
        others = torch.ones(PAGE, dtype=torch.bool)
        others[5] = False
        if not centred:
            assert relative_error(x[2, others], y[2, others]) < 0.2


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("centred", [False, True])
def test_what_is_not_finite_becomes_harmless(name: str, centred: bool) -> None:
    x = gaussian(2, 128)
    broken = x.clone()
    broken[0, 3, 4], broken[0, 9, 1], broken[0, 20, 0] = torch.nan, torch.inf, -torch.inf
    mended = broken.nan_to_num(0.0, 65504.0, -65504.0)
    codec = PageCodec(get_format(name), 128, "k", centred=centred)
    assert torch.equal(codec.encode(broken), codec.encode(mended))
    assert codec.decode(codec.encode(broken)).isfinite().all()


@pytest.mark.parametrize("name", QUANTISED)
def test_decode_rounds_once(name: str) -> None:
    codec = PageCodec(get_format(name), 128, "k", centred=True)
    page = codec.encode(gaussian(2, 128) + 1)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(codec.decode(page, dtype), codec.decode(page).to(dtype))


@pytest.mark.parametrize("name", QUANTISED)
def test_centring_takes_the_mean_out_and_puts_it_back(name: str) -> None:
    x = gaussian(4, 128)
    offset = 20 * gaussian(4, 128, seed=1)[:, :1]
    codec = PageCodec(get_format(name), 128, "k", centred=True)
    page = codec.encode(x + offset)
    mean = codec.mean(page)
    step = (x + offset).mean(1).abs().amax(-1, keepdim=True) / 127
    assert ((mean - (x + offset).mean(1)).abs() <= step * 0.501).all()
    bare = PageCodec(get_format(name), 128, "k")
    alone = bare.decode(bare.encode(x + offset - mean[:, None]))
    assert torch.equal(codec.decode(page, add_mean=False), alone)
    assert torch.equal(codec.decode(page), alone + mean[:, None])
    assert codec.bits_per_value == pytest.approx(bare.bits_per_value + 0.125 + 1 / 64)


def test_plain_follows_the_dtype_of_the_model_and_loses_nothing() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = gaussian(2, 80).to(dtype)
        x[0, 0, 0] = torch.inf
        codec = PageCodec(get_format("plain"), 80, "k", dtype=dtype)
        assert codec.bits_per_value == 8 * dtype.itemsize
        assert torch.equal(codec.decode(codec.encode(x), dtype), x)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("centred", [False, True])
def test_what_is_read_is_no_part_of_the_page(name: str, centred: bool) -> None:
    codec = PageCodec(get_format(name), 128, "k", centred=centred)
    page = codec.encode(gaussian(1, 128))
    before = page.clone()
    codec.decode(page).zero_()
    codec.mean(page).zero_()
    assert torch.equal(page, before)


def test_f16_clips_what_it_cannot_hold() -> None:
    codec = PageCodec(get_format("f16"), 64, "v")
    assert codec.decode(codec.encode(torch.full((1, PAGE, 64), 1e6))).max() == 65504


@pytest.mark.parametrize(
    ("settings", "match"), [({"head_dim": 100}, "multiple of 16"), ({"gain": "nrom"}, "'norm'")]
)
def test_wrong_settings_are_refused_with_the_next_move(settings: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        PageCodec(get_format("q8_0"), **{"head_dim": 128, "side": "k"} | settings)  # type: ignore[arg-type]


def test_pages_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"\[N, 64, 128\], not \[1, 63, 128\]"):
        PageCodec(get_format("q8_0"), 128, "k").encode(torch.zeros(1, 63, 128))
