"""Which rows of a step read which pages, for one layer group.

A step holds segments, one per sequence: n new tokens after `computed` stored ones. What a segment attends to
is split

    complete pages, shared          → one `Item` for all sequences that hold the same run of pages: read once
    complete pages, private         → one `Item` of its own
    its few private plain pages,
    its open page, its new tokens   → its `Tail`, with a causal mask

so that a document is read once per step however many agents hang on it. Complete pages lie wholly in the past
of every row and need no mask, except under a sliding window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from octavo.formats.base import PAGE
from octavo.pages.bands import BANDS, cut, views
from octavo.pages.segment import Ints, Segment

__all__ = ["Item", "Plan", "Segment", "Slots", "Tail", "make_plan", "sees"]

Slots = torch.Tensor | range
"""Slots of pages to read; a range where they lie one behind the other, so that nothing need be gathered."""

ROWS = 128
"""New tokens of a segment that share a tail."""
FEW = 4
"""Private plain pages up to this many are read with the tail instead of as an item."""


@dataclass(frozen=True)
class Item:
    """Rows [R] that read the same complete pages: packed slots, then plain slots.

    `bias` [R, (packed + plain) · 64] is −inf outside a row's window, else 0; None: every row sees all. `band`
    says which of a row's queries reads them (pages/bands.py).
    """

    rows: torch.Tensor
    packed: Slots
    plain: Slots
    bias: torch.Tensor | None
    band: int = 0


@dataclass(frozen=True)
class Tail:
    """B segments of n tokens each, P plain pages each (padded).

    rows [B · n]; slots [B · P]; bias [B, n, P · 64] is −inf where a row must not look, else 0; unseen [B, P ·
    64] marks what none of a segment's rows sees: such slots may hold anything.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    bias: torch.Tensor
    unseen: torch.Tensor


@dataclass(frozen=True)
class Plan:
    """Everything attention needs in one group: where to write [T], and whom to read."""

    slots: torch.Tensor
    offsets: torch.Tensor
    items: list[Item]
    tails: list[Tail]
    whole: bool
    """Whether the first tail covers all rows in order."""


@dataclass(frozen=True)
class Run:
    """Segments that share pages [begin, end) of their tables."""

    members: list[int]
    begin: int
    end: int


def shared_runs(tables: list[Ints]) -> list[Run]:
    """Cut tables of page addresses into runs held by the same members; sharing starts at the front only."""
    runs: list[Run] = []
    todo = [(list(range(len(tables))), 0)]
    while todo:
        members, begin = todo.pop()
        byfirst: dict[int, list[int]] = {}
        for m in members:
            if len(tables[m]) > begin:
                byfirst.setdefault(int(tables[m][begin]), []).append(m)
        for same in byfirst.values():
            end = begin + common(tables, same, begin)
            runs.append(Run(same, begin, end))
            if len(same) > 1:
                todo.append((same, end))
    return runs


def common(tables: list[Ints], members: list[int], begin: int) -> int:
    """Pages from `begin` on that all members share."""
    head = tables[members[0]][begin:]
    n = min(len(tables[m]) - begin for m in members)
    for m in members[1:]:
        differs = np.nonzero(tables[m][begin : begin + n] != head[:n])[0]
        n = int(differs[0]) if len(differs) else n
    return n


def sees(queries: Ints, keys: Ints, window: int | None) -> npt.NDArray[np.bool_]:
    """[.., Q], [.., K] positions → [.., Q, K]: causal, and within the window."""
    gap = queries[..., :, None] - keys[..., None, :]
    return (gap >= 0) if window is None else (gap >= 0) & (gap < window)


def page_positions(pages: Ints) -> Ints:
    """Page indices [.., P] → token positions [.., P · 64]."""
    return (pages[..., None] * PAGE + np.arange(PAGE)).reshape(*pages.shape[:-1], -1)


def make_plan(
    segments: list[Segment], window: int | None, device: torch.device, chunk: int | None = None
) -> Plan:
    """Plan one group's reading and writing for a step, in bands where there is a `chunk` length."""
    parts = [views(part, chunk) for part in cut(segments, chunk)]
    own = [part[0].segment for part in parts]
    complete = [s.computed // PAGE - s.first for s in own]
    private: list[Ints] = [np.arange(c, len(s.pages)) for s, c in zip(own, complete, strict=True)]
    items = []
    for members in alike(own):
        for run in shared_runs([own[m].pages[: complete[m]] for m in members]):
            owners = [members[m] for m in run.members]
            pages = np.arange(run.begin, run.end)
            address = own[owners[0]].pages[pages]
            plain = pages[address < 0]
            if len(owners) == 1 and len(plain) <= FEW:
                private[owners[0]] = np.concatenate([plain, private[owners[0]]])
                plain = plain[:0]
            packed = pages[address >= 0]
            if len(packed) + len(plain):
                items.append(make_item([own[o] for o in owners], packed, plain, window, device))
    for band in range(1, len(BANDS)):
        items += past_items([v.segment for part in parts for v in part if v.band == band], band, device)
    tails = make_tails(own, private, window, device)
    positions = np.concatenate([s.computed + np.arange(s.n) for s in segments])
    where = [~s.pages[(s.computed + np.arange(s.n)) // PAGE - s.first] for s in segments]
    whole = len(tails) == 1 and bool((tails[0].rows == torch.arange(len(positions), device=device)).all())
    return Plan(to(np.concatenate(where), device), to(positions % PAGE, device), items, tails, whole)


def alike(segments: list[Segment]) -> Iterator[list[int]]:
    """Segments that may share pages: only tables that start at the same page can."""
    firsts: dict[int, list[int]] = {}
    for n, s in enumerate(segments):
        firsts.setdefault(s.first, []).append(n)
    yield from firsts.values()


def past_items(segments: list[Segment], band: int, device: torch.device) -> Iterator[Item]:
    """Items of a band whose pages are all complete and in the past."""
    for members in alike(segments):
        for run in shared_runs([segments[m].pages for m in members]):
            owners = [segments[members[m]] for m in run.members]
            pages = np.arange(run.begin, run.end)
            address = owners[0].pages[pages]
            yield make_item(owners, pages[address >= 0], pages[address < 0], None, device, band)


def make_item(
    owners: list[Segment],
    packed: Ints,
    plain: Ints,
    window: int | None,
    device: torch.device,
    band: int = 0,
) -> Item:
    rows = np.concatenate([o.start + np.arange(o.n) for o in owners])
    address = owners[0].pages
    bias = None
    if window is not None:
        queries = np.concatenate([o.computed + np.arange(o.n) for o in owners])
        keys = page_positions(np.concatenate([packed, plain]) + owners[0].first)
        bias = blind(~sees(queries, keys, window), device)
    slots = compact(address[packed], device), compact(~address[plain], device)
    return Item(to(rows, device), *slots, bias, band)


def compact(slots: Ints, device: torch.device) -> Slots:
    if len(slots) and (np.diff(slots) == 1).all():
        return range(int(slots[0]), int(slots[-1]) + 1)
    return to(slots, device)


def make_tails(
    segments: list[Segment], private: list[Ints], window: int | None, device: torch.device
) -> list[Tail]:
    """Segments of one token share a padded tail; longer ones have tails of their own, `ROWS` tokens at a
    time,
    so that most of what lies in a token's future is never looked at."""
    single = [n for n, s in enumerate(segments) if s.n == 1]
    sets = [([segments[n] for n in single], [private[n] for n in single])] if single else []
    for s, own in zip(segments, private, strict=True):
        if s.n > 1:
            sets += [([part], [own[own < len(part.pages)]]) for part in parts(s)]
    return [make_tail(members, pages, window, device) for members, pages in sets]


def parts(segment: Segment) -> list[Segment]:
    """A segment cut into pieces of up to `ROWS` tokens; each knows the pages up to its last token."""
    cut = []
    for begin in range(0, segment.n, ROWS):
        n = min(ROWS, segment.n - begin)
        computed = segment.computed + begin
        pages = segment.pages[: (computed + n - 1) // PAGE + 1 - segment.first]
        cut.append(Segment(segment.start + begin, n, computed, segment.first, pages))
    return cut


def make_tail(members: list[Segment], private: list[Ints], window: int | None, device: torch.device) -> Tail:
    width = max(len(p) for p in private)
    slots = np.zeros((len(members), width), np.int64)
    pages = np.full(
        (len(members), width), np.iinfo(np.int32).max, np.int64
    )  # padding lies in the future: unseen
    for b, (s, own) in enumerate(zip(members, private, strict=True)):
        slots[b, : len(own)] = ~s.pages[own]
        pages[b, : len(own)] = own + s.first
    queries = np.stack([s.computed + np.arange(s.n) for s in members])
    rows = np.stack([s.start + np.arange(s.n) for s in members])
    hidden = ~sees(queries, page_positions(pages), window)
    return Tail(
        to(rows.ravel(), device), to(slots.ravel(), device), blind(hidden, device), to(hidden.all(1), device)
    )


def blind(hidden: npt.NDArray[np.bool_], device: torch.device) -> torch.Tensor:
    """float32: −inf where hidden, else 0."""
    return to(np.where(hidden, np.float32(-np.inf), np.float32(0)), device)


def to(array: npt.ArrayLike, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
