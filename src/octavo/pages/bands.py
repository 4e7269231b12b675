"""Bands: which of three rotated queries a page is read with, under Dual Chunk Attention.

Positions are cut into chunks of c tokens, a multiple of the page size. A key at position j is stored rotated
at j mod c; a query at position i reads a page of chunk j // c with the rotation of its band:

    0  own chunk                   query rotated at i mod c
    1  the chunk before            query rotated at i mod c + c
    2  chunks further back         query rotated at 2c

so distances are true within 2c tokens and never exceed 2c. A page lies in one chunk, so for one row it has
one band. A step of T rows has its queries behind one another, band by band: row r of band b is row r + b · T.

Source: An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models" (Dual Chunk Attention).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from octavo.formats.base import PAGE
from octavo.pages.segment import Ints, Segment

__all__ = ["BANDS", "Turns", "View", "band_of", "count_bands", "cut", "views"]

BANDS = ("intra", "succ", "inter")


@dataclass(frozen=True)
class View:
    """The part of a segment's pages that lies in one band. Bands beyond 0 hold complete, past pages only."""

    segment: Segment
    band: int


@dataclass(frozen=True)
class Turns:
    """How one layer's queries turn on from the rotation they come with, band by band.

    bands    how many some row of the step reads, 1 to 3
    cos, sin float32 [2, T, D] of bands 1 and 2: q · cos + q[partner] · sin; None where a layer has no RoPE
    partner  int32 [D]
    reach    int64 [T], the highest band each row reads
    counts   int64 [3] of the layer: rows that read each band so far
    """

    bands: int
    cos: torch.Tensor | None
    sin: torch.Tensor | None
    partner: torch.Tensor | None
    reach: torch.Tensor
    counts: torch.Tensor


def band_of(positions: Ints, chunk: int) -> Ints:
    """The highest band that a query at each position reads."""
    return np.minimum(positions // chunk, len(BANDS) - 1).astype(np.int64)


def count_bands(segments: list[Segment], chunk: int | None) -> int:
    """How many bands the rows of a step read."""
    if chunk is None or not segments:
        return 1
    return 1 + int(band_of(np.array([s.computed + s.n - 1 for s in segments]), chunk).max())


def cut(segments: list[Segment], chunk: int | None) -> list[Segment]:
    """The same rows in segments that cross no chunk's edge; what lies before a part is stored for it."""
    if chunk is None:
        return segments
    return [part for s in segments for part in _cut(s, chunk)]


def _cut(segment: Segment, chunk: int) -> Iterator[Segment]:
    begin, end = segment.computed, segment.computed + segment.n
    while begin < end:
        stop = min(end, (begin // chunk + 1) * chunk)
        pages = segment.pages[: -(-stop // PAGE) - segment.first]
        start = segment.start + begin - segment.computed
        yield replace(segment, start=start, n=stop - begin, computed=begin, pages=pages)
        begin = stop


def views(segment: Segment, chunk: int | None) -> list[View]:
    """A segment within one chunk, by bands; band 0 first."""
    if chunk is None:
        return [View(segment, 0)]
    own = segment.computed // chunk
    edges = [page * chunk // PAGE for page in (own, max(own - 1, 0), 0)]
    found, last = [], segment.first + len(segment.pages)
    for band, edge in enumerate(edges):
        edge = max(edge, segment.first)
        if band == 0 or edge < last:
            pages = segment.pages[edge - segment.first : last - segment.first]
            found.append(View(replace(segment, first=edge, pages=pages), band))
        last = edge
    return found
