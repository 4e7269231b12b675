"""Makes the tables of the formats; `python -m octavo.formats.train [FOLDER]` always writes the same bytes.

Lloyd-Max levels by iterating Lloyd's two conditions on N(0, 1) in closed form. Trellis tables by the
same idea on walks: encode fresh Gaussian streams, move every state's level to the mean of the values
that chose it, repeat. The start, a permutation of the normal quantiles, decides in which optimum this
ends. Costs and sums are exact (see viterbi), numpy's RandomState is frozen for ever.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from octavo.formats.viterbi import closest_symbols, ring_states

__all__ = ["TRELLISES", "distortion", "gaussian_streams", "lloyd_max", "train_trellis"]

TRELLISES = {4: (8, 67), 3: (9, 67), 2: (8, 71)}
"""By symbol bits k: state bits L, and the multiplier of the permutation to start from."""

ROUNDS = 80
STREAMS = 1024
LENGTH = 256
"""Streams of one round and values of a stream: as many as a lane holds at head_dim 128."""

STRIDE = 1.75
"""Times the way to its mean that a level moves in one round: overshooting halves the rounds needed."""

GRID = 4096
"""Training values are multiples of 1 / GRID, so that their sums are exact."""

LARGEST = 127
"""Of signed bytes that mirror."""


def lloyd_max(levels: int) -> list[float]:
    """The best levels for N(0, 1), ascending: each the mean of its cell, cells parted half-way between."""
    normal = NormalDist()
    points = [normal.inv_cdf((i + 0.5) / levels) for i in range(levels)]
    for _ in range(20000):
        edges = [-np.inf, *((a + b) / 2 for a, b in pairwise(points)), np.inf]
        below = [0.0 if abs(e) == np.inf else normal.pdf(e) for e in edges]
        mass = [0.0, *(normal.cdf(e) for e in edges[1:-1]), 1.0]
        points = [(below[i] - below[i + 1]) / (mass[i + 1] - mass[i]) for i in range(levels)]
    return points


def gaussian_streams(seed: int, streams: int = STREAMS, length: int = LENGTH) -> Tensor:
    """Unit Gaussian values on the grid: float64 [T, B]."""
    values = np.random.RandomState(seed).standard_normal((length, streams))
    return torch.from_numpy(np.round(values * GRID) / GRID)


def as_bytes(table: Tensor) -> tuple[Tensor, float]:
    """Levels in standard deviations → whole numbers up to 127, and standard deviations per unit."""
    step = float(table.abs().max()) / LARGEST
    return (table / step).round(), step


def distortion(levels: Tensor, step: float, bits: int, x: Tensor) -> float:
    """Mean squared error of streams x [T, B]; levels whole numbers [2^L], step their unit."""
    states = ring_states(
        closest_symbols((x / step).float(), levels, bits), bits, len(levels).bit_length() - 1
    )
    return float((x - levels.double()[states.long()] * step).square().mean())


def train_trellis(bits: int, rounds: int = ROUNDS, streams: int = STREAMS) -> Tensor:
    """Levels of every state in standard deviations, float64 [2^L]: whole numbers times one step."""
    state_bits, multiplier = TRELLISES[bits]
    count = 1 << state_bits
    normal = NormalDist()
    table = torch.tensor(
        [normal.inv_cdf((multiplier * s % count + 0.5) / count) for s in range(count)]
    ).double()
    for seed in range(rounds):
        x = gaussian_streams(seed, streams)
        levels, step = as_bytes(table)
        states = (
            ring_states(closest_symbols((x / step).float(), levels, bits), bits, state_bits).long().flatten()
        )
        sums = torch.zeros(count, dtype=torch.float64).index_add_(0, states, x.flatten())
        visits = torch.bincount(states, minlength=count)
        table = table + STRIDE * (torch.where(visits > 0, sums / visits, table) - table)
        if seed % 20 == 19:
            print(f"k={bits} round {seed + 1}: D {distortion(*as_bytes(table), bits, x):.6f}", flush=True)
    levels, step = as_bytes(table)
    return levels * step


def main() -> None:
    """Write every table and print its error on streams no table was trained on."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "tables")
    for count in (4, 8, 16):
        print(count, "levels:", *(f"{p:.8f}" for p in lloyd_max(count)[count // 2 :]))
    for bits in TRELLISES:
        table = train_trellis(bits)
        np.save(folder / f"trellis{bits}.npy", table.float().numpy())
        levels, step = as_bytes(table)
        print(
            f"k={bits} held out: D {distortion(levels, step, bits, gaussian_streams(10**6)):.6f}", flush=True
        )


if __name__ == "__main__":
    main()
