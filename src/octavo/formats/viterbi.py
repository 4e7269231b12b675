"""The tail-biting trellis: which symbols make the closest walk through a table of levels.

A state is L bits, a symbol k. A stream of T symbols is read as a ring: value t is levels[state t], and
state t is the L bits of the stream from bit t k on, lowest first: symbol t + 2^k symbol t+1 + ...
Walking on drops the oldest symbol, the lowest k bits, and takes in one new.
(Marcellin and Fischer, IEEE Trans. Commun. 38, 1990; QTIP, arXiv 2406.11235, section 3.)

Arrays are [states, streams]: each stream is a column, so that a step is a few wide operations. Only the
L - k bits which two neighbouring states share, their `overlap`, tell walks apart.

Costs are whole numbers in float32, hence exact and the same on every machine. The oldest symbol of a
walk rides along as their fraction, symbol / 2^k: the minimum then brings its own argument with it, and
ties go to the smallest symbol.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FINE", "closest_symbols", "ring_states"]

STREAMS = 256
"""Streams a CPU walks at once: their path costs fit the second-level cache of a core."""

STREAMS_ACCELERATED = 8192
"""Streams another device walks at once: below 3 GB at head_dim 512."""

RUN_IN = 32
"""Values on each side of the seam that decide in which state the ring is closed."""

FINE = 4
"""Steps per unit of the levels to which values are rounded before the walk."""

FARTHEST = 255.0
"""Larger values, in units of the levels, walk as this: costs stay exact below 2^24 / 2^k."""

OUT_OF_REACH = float(1 << 18)
"""The head start of the one overlap a closed walk may begin with."""

SETTLE = 16
"""Steps after which the least cost is taken off all."""


def closest_symbols(x: Tensor, levels: Tensor, bits: int) -> Tensor:
    """Symbols, uint8 [T, B], whose levels are close to x float [T, B].

    `levels` [2^L] are whole numbers in ±127, x is in their unit, `bits` is k.

    Two passes: a walk over the values around the seam fixes the state there, then the best walk round
    the ring from that state to itself.
    """
    width = STREAMS if x.device.type == "cpu" else STREAMS_ACCELERATED
    fine = (x.clamp(-FARTHEST, FARTHEST) * FINE).round()
    parts = [_close_ring(part.contiguous(), levels.float(), bits) for part in torch.split(fine, width, 1)]
    return torch.cat(parts, 1)


def ring_states(symbols: Tensor, bits: int, state_bits: int) -> Tensor:
    """The state at every value: int32 [T, B] for symbols uint8 [T, B]."""
    states = symbols.to(torch.int32)
    for i in range(1, state_bits // bits):
        states = states | symbols.roll(-i, 0).to(torch.int32) << (bits * i)
    return states


def _close_ring(x: Tensor, levels: Tensor, bits: int) -> Tensor:
    run_in = min(RUN_IN, len(x) // 2)
    seam = torch.cat((x[-run_in:], x[:run_in]))
    costs = _walk(seam, levels, bits, None)
    _, overlap = _trace(costs, bits, costs[-1].argmin(0), run_in)
    symbols, _ = _trace(_walk(x, levels, bits, overlap), bits, overlap, 0)
    return symbols


def _walk(x: Tensor, levels: Tensor, bits: int, start: Tensor | None) -> Tensor:
    """Least squared error, up to a term without choice, of the walks to each overlap: [T, 2^(L-k), B].

    `start` int64 [B] is the overlap all walks begin with; None lets them begin anywhere.
    """
    (length, streams), fan = x.shape, 1 << bits
    overlaps = len(levels) // fan
    oldest = torch.arange(len(levels), device=x.device) % fan
    level = levels.view(fan, overlaps, 1)
    square = (FINE * levels.square() + oldest / fan).view(fan, overlaps, 1)
    least = x.new_empty(length, overlaps, streams)
    cost = x.new_empty(fan, overlaps, streams)
    before = x.new_zeros(overlaps, streams)
    if start is not None:
        before.fill_(OUT_OF_REACH).scatter_(0, start[None], 0.0)
    for t in range(length):
        torch.addcmul(before, level, x[t], value=-2, out=cost)
        torch.amin(cost.add_(square).view(overlaps, fan, streams), 1, out=least[t])
        torch.floor(least[t], out=before)
        if t % SETTLE == 0:
            before -= before.amin(0)
    return least


def _trace(least: Tensor, bits: int, overlap: Tensor, stop: int) -> tuple[Tensor, Tensor]:
    """Walk back from `overlap` int64 [B] behind the last value to value `stop`: symbols and overlap there."""
    length, overlaps, streams = least.shape
    symbols = torch.empty(length, streams, dtype=torch.uint8, device=least.device)
    for t in range(length - 1, stop - 1, -1):
        ridden = least[t].gather(0, overlap[None])[0].frac().mul_(1 << bits).remainder_(1 << bits)
        symbols[t] = ridden
        overlap = (overlap << bits).add_(symbols[t]) & (overlaps - 1)
    return symbols, overlap
