"""Which query rows read which pages together: the work of one step, as a few integer arrays.

A run is a row of pages that up to 16 query rows read at once, or up to 128 where many share them. A query
row is (query token, query head of the group). Sequences that begin with the same addresses share a run for
the pages they have in common, so those are read once; what is left of each becomes its own run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.formats.base import PAGE

__all__ = ["TILE", "WIDE_TILE", "Plan", "Reader", "plan_items"]

TILE = 16
"""Query rows of a tile of the tensor core."""

WIDE_TILE = 128
"""Query rows of a wide run, whose pages are unpacked once for all of them (cuda/wide.cu)."""

HALF_COST, WHOLE_COST = 2.0, 3.5
"""What reading a page takes in a wide run of up to 64 rows, and of more, in readings by one tile."""


@dataclass(frozen=True)
class Reader:
    """One sequence of a step.

    pages   int32 [P], addresses in order: packed slot a >= 0, plain slot ~a < 0. The last may be open
    tokens  indices of its query tokens in the step's flat batch; under bands row t of band b is t + b · T
    first   position of the first token of pages[0] (a multiple of the page size)
    """

    pages: np.ndarray
    tokens: range
    first: int = 0


@dataclass(frozen=True)
class Plan:
    """Arrays for the kernel, int32.

    addresses  [A] page addresses of all runs, one after another
    runs       [R, 4] start in `addresses`, pages, position of the first token, pages of all runs up to here
    rows       [R, 16] query rows, token << 8 | head of the group; -1 where the tile is not full
    sees       [T, 2] positions [from, to) each query token sees
    offsets    [outputs * group + 1] and links: run * 16 + place of every tile whose rows join an output row;
               of a wide run ~(run * 128 + place)
    wide_runs  [W, 4] and wide_rows [W, 128]: the same of wide runs
    outputs    tokens that get an output: T / bands
    """

    addresses: np.ndarray
    runs: np.ndarray
    rows: np.ndarray
    sees: np.ndarray
    offsets: np.ndarray
    links: np.ndarray
    wide_runs: np.ndarray
    wide_rows: np.ndarray
    group: int
    most_rows: int
    outputs: int

    @property
    def num_pages(self) -> int:
        """Of all runs; a page that several runs read counts for each."""
        return int(self.runs[:, 1].sum())

    @property
    def header(self) -> tuple[int, int, int, int]:
        """Runs and their pages, wide runs and theirs."""
        return len(self.runs), self.num_pages, len(self.wide_runs), int(self.wide_runs[:, 1].sum())

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """In the order the kernels take them."""
        narrow = self.addresses, self.runs, self.rows, self.sees, self.offsets, self.links
        return *narrow, self.wide_runs, self.wide_rows


def plan_items(
    readers: Sequence[Reader],
    positions: np.ndarray,
    group: int,
    window: int | None = None,
    bands: int = 1,
    wide: int = 0,
    wide_saves: float = -math.inf,
) -> Plan:
    """The plan of one step. positions int [T]: of each query token, which sees itself and what is before.

    With `bands` the T tokens are so many sets of queries, one behind the other, of T / bands tokens.

    With `window` a token sees that many tokens, itself included; pages before all windows of a reader
    should not be in it. Pages that `wide` query rows or more read together become wide runs, 0: none do; but
    only where that saves `wide_saves` readings of a page by a tile.
    """
    positions = np.asarray(positions, np.int64)
    low = np.zeros_like(positions) if window is None else np.maximum(positions + 1 - window, 0)
    sees = np.stack((low, positions + 1), 1).astype(np.int32)
    narrow: list[Tile] = []
    broad: list[Tile] = []
    for pages, first, tokens in _share(list(readers), 0):
        rows, at = (tokens[:, None] * group + np.arange(group)).ravel(), 0
        while at < len(rows):
            left = min(len(rows) - at, WIDE_TILE)
            pays = 0 < wide <= left and len(pages) * _saved(left) >= wide_saves
            tiles, size = (broad, WIDE_TILE) if pays else (narrow, TILE)
            tiles.append((pages, first, rows[at : at + size]))
            at += size
    starts, addresses = _lay_out([pages for pages, _, _ in narrow + broad])
    runs, rows = _runs(narrow, starts[: len(narrow)], group, TILE)
    wide_runs, wide_rows = _runs(broad, starts[len(narrow) :], group, WIDE_TILE)
    outputs = len(positions) // bands
    flat = np.concatenate((rows.ravel(), wide_rows.ravel()))
    joined = (flat >> 8) % max(outputs, 1) * group + (flat & 255)
    offsets, links = _links(np.where(flat < 0, -1, joined), outputs * group)
    links = np.where(links < rows.size, links, ~(links - rows.size)).astype(np.int32)
    most = int((rows >= 0).sum(1).max(initial=0))
    return Plan(addresses, runs, rows, sees, offsets, links, wide_runs, wide_rows, group, most, outputs)


Tile = tuple[np.ndarray, int, np.ndarray]
"""Pages, position of their first token, query rows."""


def _saved(rows: int) -> float:
    """Readings of each page by a tile that a wide run of `rows` saves."""
    return -(-rows // TILE) - (HALF_COST if 2 * rows <= WIDE_TILE else WHOLE_COST)


def _runs(tiles: list[Tile], starts: list[int], group: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The arrays runs and rows of tiles of up to `size` rows; starts of their pages in the addresses."""
    runs = np.zeros((len(tiles), 4), np.int32)
    rows = np.full((len(tiles), size), -1, np.int32)
    for i, ((pages, first, tile), start) in enumerate(zip(tiles, starts, strict=True)):
        runs[i, :3] = (start, len(pages), first)
        rows[i, : len(tile)] = tile // group << 8 | tile % group
    runs[:, 3] = np.cumsum(runs[:, 1])
    return runs, rows


def _share(readers: list[Reader], done: int):
    """(pages, first position, query tokens) of every stretch that the same readers read, `done` pages in."""
    groups: dict[tuple[int, int], list[Reader]] = {}
    for reader in readers:
        if len(reader.pages) > done and len(reader.tokens):
            groups.setdefault((reader.first, int(reader.pages[done])), []).append(reader)
    for members in groups.values():
        common = _common(members, done)
        tokens = np.concatenate([np.arange(m.tokens.start, m.tokens.stop) for m in members])
        yield members[0].pages[done:common], members[0].first + PAGE * done, tokens
        yield from _share(members, common) if len(members) > 1 else ()


def _common(members: list[Reader], done: int) -> int:
    """How many leading pages all members share."""
    lead = members[0].pages
    common = min(len(m.pages) for m in members)
    for member in members[1:]:
        differ = np.flatnonzero(lead[done:common] != member.pages[done:common])
        common = done + int(differ[0]) if len(differ) else common
    return common


def _lay_out(parts: list[np.ndarray]) -> tuple[list[int], np.ndarray]:
    """Where each part starts in the addresses; tiles over the same pages share one copy."""
    starts, kept, total, seen = [], [], 0, {}
    for part in parts:
        if id(part) not in seen:
            seen[id(part)] = total
            kept.append(np.asarray(part, np.int32))
            total += len(part)
        starts.append(seen[id(part)])
    return starts, np.concatenate(kept) if kept else np.zeros(0, np.int32)


def _links(flat: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    at = np.flatnonzero(flat >= 0)
    order = at[np.argsort(flat[at], kind="stable")]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(flat[at], minlength=num_rows))))
    return offsets.astype(np.int32), order.astype(np.int32)
