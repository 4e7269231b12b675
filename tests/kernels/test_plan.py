"""Plans: every row meets each of its pages once, and shared pages are read once."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.plan import TILE, WIDE_TILE, Plan, Reader, plan_items


def readers(tables: list[list[int]], queries: int = 1) -> list[Reader]:
    return [
        Reader(np.array(t, np.int32), range(i * queries, (i + 1) * queries)) for i, t in enumerate(tables)
    ]


def pages_of(plan: Plan, row: int) -> list[tuple[int, int]]:
    """(position of its first token, address) of every page that a query row meets."""
    met = []
    for link in plan.links[plan.offsets[row] : plan.offsets[row + 1]]:
        runs, rows, tile = plan.runs, plan.rows, TILE
        if link < 0:
            runs, rows, tile, link = plan.wide_runs, plan.wide_rows, WIDE_TILE, ~link
        start, count, first, _ = runs[link // tile]
        assert rows[link // tile, link % tile] == row // plan.group << 8 | row % plan.group
        met += [(first + 64 * i, int(a)) for i, a in enumerate(plan.addresses[start : start + count])]
    return sorted(met)


@pytest.mark.parametrize("group", [1, 3, 4, 16])
@pytest.mark.parametrize("queries", [1, 5, 40])
@pytest.mark.parametrize("wide", [0, 1, 33])
def test_every_row_meets_each_of_its_pages_once(group: int, queries: int, wide: int) -> None:
    tables = [[5, 7, 1, -2], [5, 7, 1, 9, -3], [5, 8, -4], [6, -5], [-6]]
    plan = plan_items(readers(tables, queries), np.arange(len(tables) * queries), group, wide=wide)
    for i, table in enumerate(tables):
        for row in range(i * queries * group, (i + 1) * queries * group):
            assert pages_of(plan, row) == [(64 * n, a) for n, a in enumerate(table)]


def test_shared_pages_are_one_run() -> None:
    shared = list(range(100))
    plan = plan_items(readers([[*shared, -1 - i] for i in range(4)]), np.full(4, 6400), 4)
    assert plan.runs[:, 1].tolist() == [100, 1, 1, 1, 1]
    assert plan.most_rows == 16


@pytest.mark.parametrize(
    ("rows", "pages", "wide"),
    [(48, 399, False), (48, 400, True), (64, 200, True), (128, 89, True), (128, 88, False)],
)
def test_a_wide_run_must_save_what_it_costs(rows: int, pages: int, wide: bool) -> None:
    """400 readings by a tile: one for each page of three tiles, two of four, four and a half of eight."""
    shared = readers([list(range(pages)) for _ in range(rows // 4)])
    plan = plan_items(shared, np.full(rows // 4, 64 * pages - 1), 4, wide=33, wide_saves=400)
    assert (len(plan.wide_runs), len(plan.runs)) == ((1, 0) if wide else (0, rows // 16))


def test_what_many_rows_share_is_a_wide_run() -> None:
    """As long as enough rows are left; 35 sequences of four rows are one wide tile and a narrow one."""
    plan = plan_items(readers([[3, 4, 5, -1 - i] for i in range(35)]), np.full(35, 200), 4, wide=64)
    assert plan.wide_runs[:, 1:].tolist() == [[3, 0, 3]]
    assert (plan.wide_rows >= 0).sum() == 128
    assert plan.runs[:, 1].tolist() == [3] + [1] * 35
    assert plan.header == (36, 38, 1, 3)


def test_tiles_of_one_stretch_share_its_addresses() -> None:
    plan = plan_items(readers([[3, 4, 5]] * 9), np.full(9, 100), 4)
    assert plan.addresses.tolist() == [3, 4, 5]
    assert plan.runs[:, 0].tolist() == [0, 0, 0]
    assert plan.runs[:, 3].tolist() == [3, 6, 9]


def test_a_window_bounds_what_a_token_sees() -> None:
    plan = plan_items(readers([[1, 2]]), np.array([100]), 1, window=30)
    assert plan.sees.tolist() == [[71, 101]]


def test_positions_count_from_the_first_page_given() -> None:
    plan = plan_items([Reader(np.array([4, 5], np.int32), range(1), first=640)], np.array([700]), 1)
    assert plan.runs[0].tolist() == [0, 2, 640, 2]


def test_nothing_to_read_is_a_plan_too() -> None:
    plan = plan_items([], np.zeros(0, np.int64), 4)
    assert plan.num_pages == 0
    assert plan.most_rows == 0
