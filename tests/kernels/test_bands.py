"""Plans in bands, interpreted in numpy: a query meets each earlier position once, turned as its band says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from octavo.attention.cuda import SHORT, decode_plan
from octavo.attention.prefill import STRETCH, Past, plan_past
from octavo.engine.graphs import SIZES, device_plan
from octavo.kernels.decode import DevicePlan
from octavo.kernels.plan import TILE, Plan
from octavo.model.shape import LayerGroup
from octavo.pages.bands import count_bands, cut
from octavo.pages.segment import Segment

CPU = torch.device("cpu")
CHUNKS = (64, 128, 192)


def group(heads: int = 4, window: int | None = None) -> LayerGroup:
    return LayerGroup("full", heads, 1, 64, window, (0,))


def segment(start: int, n: int, computed: int, shared: int = 0) -> Segment:
    """Its first `shared` pages are everybody's, packed; the others its own, plain."""
    pages = np.arange(-(-(computed + n) // 64))
    return Segment(start, n, computed, 0, np.where(pages < shared, pages + 7, ~(1000 * (start + 1) + pages)))


def segments(*wanted: tuple[int, ...]) -> list[Segment]:
    """(n, computed, shared) one behind the other."""
    starts = np.cumsum([0, *(n for n, *_ in wanted)])
    return [segment(int(start), *rest) for start, rest in zip(starts, wanted, strict=False)]


def met(plan: Plan, token: int, head: int) -> list[tuple[int, int, int]]:
    """(position, page address, band) of all that an output row sees, read as the kernels read a plan."""
    row, found = token * plan.group + head, []
    for link in plan.links[plan.offsets[row] : plan.offsets[row + 1]]:
        start, count, first, _ = plan.runs[link // TILE]
        query, own_head = divmod(int(plan.rows[link // TILE, link % TILE]), 256)
        assert (query % plan.outputs, own_head) == (token, head)
        low, high = plan.sees[query]
        positions = range(max(first, low), min(first + 64 * count, high))
        page = plan.addresses[start : start + count]
        found += [(p, int(page[(p - first) // 64]), query // plan.outputs) for p in positions]
    return sorted(found)


def right(position: int, pages: np.ndarray[Any, Any], chunk: int | None) -> list[tuple[int, int, int]]:
    own = 0 if chunk is None else position // chunk
    band = [0 if chunk is None else min(own - p // chunk, 2) for p in range(position + 1)]
    return [(p, int(pages[p // 64]), band[p]) for p in range(position + 1)]


def check(wanted: list[Segment], plan: Plan, chunk: int | None) -> None:
    for s in wanted:
        for n in range(s.n):
            for head in {0, plan.group - 1}:
                assert met(plan, s.start + n, head) == right(s.computed + n, s.pages, chunk), (s.start, n)


STEPS: dict[str, list[tuple[int, ...]]] = {
    "around edges": [(1, e * 192 + d, 0) for e in (1, 2, 3) for d in (-1, 0, 1)],
    "one document": [(1, c, 4) for c in (256, 300, 384, 385, 700, 1100)],
    "prefixes of one text": [(1, 64 * p + 3, p) for p in range(1, 12)],
    "drafts over edges": [(5, 189, 2), (4, 383, 5), (8, 380, 5), (2, 127, 1), (1, 900, 9)],
    "the first tokens": [(1, 0, 0), (3, 0, 0), (1, 63, 0)],
}


@pytest.mark.parametrize("heads", [1, 4, 5, 16])
@pytest.mark.parametrize("chunk", [None, *CHUNKS])
@pytest.mark.parametrize("name", STEPS)
def test_a_row_meets_every_position_once(name: str, chunk: int | None, heads: int) -> None:
    wanted = segments(*STEPS[name])
    parts, bands = cut(wanted, chunk), count_bands(wanted, chunk)
    plan = decode_plan(parts, group(heads), chunk=chunk, bands=bands)
    assert plan.outputs == sum(s.n for s in wanted) and len(plan.sees) == bands * plan.outputs
    check(wanted, plan, chunk)


@pytest.mark.parametrize("size", [s for s in SIZES if s >= 11])
def test_graphs_pad_and_always_have_three_bands(size: int) -> None:
    for name in ("one document", "prefixes of one text", "around edges"):
        wanted = segments(*STEPS[name])
        plan = decode_plan(wanted, group(), size, 128, 3)
        check(wanted, plan, 128)
        assert plan.outputs == size and len(plan.sees) == 3 * size
        assert not any(met(plan, token, 0) for token in range(len(wanted), size))


def test_pages_shared_in_a_band_are_read_once() -> None:
    """Agents in one chunk read a document once; those further on read its last pages in other bands."""
    wanted = segments(*[(1, 640 + n, 10) for n in range(6)])
    assert decode_plan(wanted, group(), chunk=256, bands=3).num_pages == 10 * 2 + 6  # 24 rows: 2 tiles
    assert decode_plan(wanted[:4], group(), chunk=256, bands=3).num_pages == 10 + 4
    both = segments(*[(1, 640 + n, 10) for n in range(2)], *[(1, 1024 + n, 10) for n in range(2)])
    plan = decode_plan(both, group(), chunk=256, bands=3)
    assert sorted(plan.addresses[plan.addresses >= 0]) == sorted([*range(7, 17), *range(11, 17)])


# prefill


def spans(past: Past) -> list[tuple[int, int, int]]:
    return sorted(past.spans)


@pytest.mark.parametrize("chunk", [64, 192, 64 * 700])
@pytest.mark.parametrize("computed", [0, 63, 64, 191, 192, 193, 500, 64 * 513, 64 * 1100 + 9, 64 * 1400])
def test_a_prefill_chunk_meets_its_past_once(chunk: int, computed: int) -> None:
    """Stretches tile the past, stay in one band and hold at most `STRETCH` pages."""
    whole = segment(0, 300, computed)
    for part in cut([whole], chunk):
        past = plan_past(part, None, CPU, chunk)
        pages = -(-part.computed // 64)
        assert past.addresses.tolist() == whole.pages[:pages].tolist() and past.tokens == part.computed
        read = [p for first, count, _ in spans(past) for p in range(first, first + count)]
        assert read == list(range(pages))
        for first, count, band in past.spans:
            assert 0 < count <= STRETCH
            ages = part.computed // chunk - np.arange(first, first + count) * 64 // chunk
            assert set(np.minimum(ages, 2)) == {band}


def test_parts_of_a_chunk_go_where_their_length_says() -> None:
    wanted = [segment(0, 500, 120)]
    parts = cut(wanted, 128)
    assert [p.n for p in parts] == [8, 128, 128, 128, 108] and parts[0].n <= SHORT
    assert [p.start for p in parts] == [0, 8, 136, 264, 392]
    assert [len(p.pages) for p in parts] == [2, 4, 6, 8, 10]


def test_without_a_chunk_length_nothing_is_cut() -> None:
    wanted = segments((300, 500, 3), (1, 900, 3))
    assert cut(wanted, None) is wanted and count_bands(wanted, None) == 1
    assert {band for *_, band in plan_past(wanted[0], None, CPU).spans} == {0}
    assert count_bands([], 64) == 1


# the room a captured graph has


def room(size: int, heads: int, pages: int, chunk: int | None, wide: bool = False) -> DevicePlan:
    own = group(heads)
    dual = None if chunk is None else SimpleNamespace(chunk=chunk, groups=frozenset({0}))
    allocator = SimpleNamespace(totals={"plain": pages, "packed": 0})
    owner: Any = SimpleNamespace(
        context=64 * pages,
        shape=SimpleNamespace(groups=(own,)),
        memory=SimpleNamespace(ledger=SimpleNamespace(groups=[SimpleNamespace(allocator=allocator)])),
        runner=SimpleNamespace(attention=SimpleNamespace(dual=dual)),
    )
    return device_plan(owner, own, size, wide, CPU)


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("heads", [1, 5, 16])
def test_graphs_have_room_for_agents_of_one_document(size: int, heads: int) -> None:
    for chunk in (None, 64, 256):
        wanted = segments(*[(1, 64 * 20 + 61 * n, 20) for n in range(size)])
        plan = decode_plan(wanted, group(heads), size, chunk, 3 if chunk else 1)
        assert room(size, heads, 20 + size * 64, chunk).fits(plan), chunk


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("heads", [5, 16])
def test_and_for_wide_runs(size: int, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.attention.cuda.wide_from", lambda _: 33)
    monkeypatch.setattr("octavo.attention.cuda.SAVES", 0.0)
    for chunk in (None, 64, 256):
        wanted = segments(*[(1, 64 * 20 + 61 * n, 20) for n in range(size)])
        plan = decode_plan(wanted, group(heads), size, chunk, 3 if chunk else 1)
        assert len(plan.wide_runs) and not room(size, heads, 20 + size * 64, chunk).fits(plan)
        assert room(size, heads, 20 + size * 64, chunk, wide=True).fits(plan), chunk


def test_more_runs_than_a_graph_has_room_for_are_told() -> None:
    """64 prompts that are prefixes of one another meet in 64 places: such a step runs without a graph."""
    wanted = segments(*[(1, 64 * p + 3, p) for p in range(1, 65)])
    plan = decode_plan(wanted, group(), 64)
    assert not room(64, 4, 200, None).fits(plan)
    assert DevicePlan.holding(plan, CPU).fits(plan)
