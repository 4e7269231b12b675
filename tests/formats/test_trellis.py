"""The trellis: windows of a ring, exact walks, and tables that come out of their script."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.formats import PAGE, PageCodec, get_format
from octavo.formats.gains import load_gains
from octavo.formats.tile import lane_order
from octavo.formats.train import TRELLISES, as_bytes, distortion, gaussian_streams, lloyd_max, train_trellis
from octavo.formats.trellis import TABLES, load_table
from octavo.formats.turbo import LEVELS, UNITS
from octavo.formats.viterbi import closest_symbols, ring_states

from .pages import gaussian

PROMISED = {4: 5.2e-3, 3: 1.9e-2, 2: 7.5e-2}


def windows(stream: np.ndarray, bits: int, state_bits: int) -> list[int]:
    """The definition, bit by bit: value t is the window of L bits from t k on, read as a ring."""
    ring = [int(byte) >> i & 1 for byte in stream for i in range(8)]
    count = len(ring) // bits
    return [sum(ring[(t * bits + j) % len(ring)] << j for j in range(state_bits)) for t in range(count)]


@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("bits", [4, 3, 2])
def test_a_lane_reads_its_own_words_and_nothing_else(bits: int, head_dim: int, side: str) -> None:
    codec = PageCodec(get_format(f"turbo{bits}_tcq"), head_dim, side, layout="tile")
    page = codec.encode(gaussian(1, head_dim))
    start, stop = codec.sections()["codes"]
    lanes = page[0, start:stop].view(-1, 32, 16).transpose(0, 1).reshape(32, -1).numpy()
    levels, _ = load_table(bits)
    values = torch.empty(PAGE * head_dim)
    for lane in (0, 13, 31):
        own = lane_order(head_dim, side)[lane]
        values[own] = levels[windows(lanes[lane], bits, TRELLISES[bits][0])].float()
        gains = load_gains(page[:, slice(*codec.sections()["gains"])], "tile")[0, :, 0]
        expected = values[own] * gains[own // head_dim]
        assert torch.equal(codec.decode(page).flatten()[own], expected)


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_other_head_dims_have_a_ring_for_each_token(bits: int) -> None:
    codec = PageCodec(get_format(f"turbo{bits}_tcq"), 80, "v")
    page = codec.encode(gaussian(1, 80))
    rows = page[0, : PAGE * 10 * bits].view(PAGE, -1).numpy()
    levels, _ = load_table(bits)
    gains = load_gains(page[:, slice(*codec.sections()["gains"])], "tile")[0, :, 0]
    for token in (0, 63):
        expected = levels[windows(rows[token], bits, TRELLISES[bits][0])].float() * gains[token]
        assert torch.equal(codec.decode(page)[0, token], expected)


def test_the_walk_is_the_best_ring_through_its_seam() -> None:
    """Six symbols of two bits, states of four bits, every ring tried. The seam's overlap is symbol 0."""
    levels = torch.tensor([-60, 20, 45, -5, 90, -30, 10, 70, -90, 33, -15, 55, -45, 5, -75, 110])
    rings = torch.tensor(list(product(range(4), repeat=6)), dtype=torch.uint8).t()
    of_all = levels[ring_states(rings, 2, 4).long()].float()
    x = torch.from_numpy(np.random.RandomState(5).randint(-500, 500, (6, 200))).float() / 4
    symbols = closest_symbols(x, levels, 2)
    errors = (x - levels[ring_states(symbols, 2, 4).long()]).square().sum(0)
    through = torch.where(rings[:1].t() == symbols[0], 0.0, torch.inf)
    all_errors = (x[:, None] - of_all[:, :, None]).square().sum(0)
    assert torch.equal(errors, (all_errors + through).amin(0))
    assert errors.mean() < 1.2 * all_errors.amin(0).mean()


def test_outliers_do_not_break_the_walk() -> None:
    levels, _ = load_table(4)
    x = torch.zeros(64, 3)
    x[5] = torch.tensor([1e6, -1e6, 40.0])
    found = levels[ring_states(closest_symbols(x, levels, 4), 4, 8).long()]
    assert found[5, 0] > 100 and found[5, 1] < -100
    assert found[20:40].float().abs().max() <= 5


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_tables_hold_on_streams_they_were_not_made_from(bits: int) -> None:
    levels, step = load_table(bits)
    assert levels.shape == (1 << TRELLISES[bits][0],)
    assert levels.abs().max() == 127
    assert distortion(levels, step, bits, gaussian_streams(77, streams=512)) < 1.02 * PROMISED[bits]


@pytest.mark.parametrize("bits", [4, 2])
def test_training_gives_the_same_table_again_and_betters_its_start(bits: int) -> None:
    first, start = train_trellis(bits, rounds=2, streams=64), train_trellis(bits, rounds=0)
    assert torch.equal(first, train_trellis(bits, rounds=2, streams=64))
    held_out = gaussian_streams(99, streams=128)
    assert distortion(*as_bytes(first), bits, held_out) < distortion(*as_bytes(start), bits, held_out)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 3, 2])
def test_the_script_makes_the_committed_bytes(bits: int, tmp_path: Path) -> None:
    np.save(tmp_path / "table.npy", train_trellis(bits).float().numpy())
    assert (tmp_path / "table.npy").read_bytes() == (TABLES / f"trellis{bits}.npy").read_bytes()


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_levels_are_those_of_lloyd_and_max(bits: int) -> None:
    upper = lloyd_max(1 << bits)[1 << (bits - 1) :]
    tolerance = 1.0 if bits == 4 else 0.5  # four-bit levels are odd
    for level, exact in zip(LEVELS[bits], upper, strict=True):
        assert abs(level - UNITS[bits] * exact) <= tolerance
    assert all(level % 2 for level in LEVELS[4])
