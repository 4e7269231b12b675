"""Random histories of the ledger alone, deeper than the engine's, with every slot's bytes played by integers.

A stored token is played by the whole text up to it: a slot then says exactly whose it is.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from octavo.errors import PoolFull
from octavo.formats.base import PAGE
from octavo.pages.ledger import GONE, Holding, Ledger, Move
from octavo.pages.prefix import page_keys
from tests.pages.audit import audit, held

ROOT = b"root"
WINDOW = 100
Cells = dict[tuple[str, int, int], dict[int, int]]  # (kind, group, slot) → offset → the text up to that token


@dataclass(eq=False)
class Run:
    """A sequence of the test: what it will say and how much of it is stored."""

    tokens: list[int]
    holding: Holding
    computed: int = 0
    base: Run | None = None
    readers: int = field(default=0)


def text_up_to(tokens: list[int], position: int) -> int:
    return hash(tuple(tokens[: position + 1]))


class LedgerHistories(RuleBasedStateMachine):
    """Three groups: packed and full, plain and sliding, packed and sliding; a dozen pages each."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger.build(
            [(9, 8), (14, 0), (8, 6)],
            [None, WINDOW, WINDOW],
            [True, False, True],
            ROOT,
            recent=64,
            exact_pages=1,
        )
        self.cells: Cells = {}
        self.runs: list[Run] = []

    # what may happen

    @rule(stream=st.sampled_from((0, 1)), shared=st.sampled_from((0, 64, 130, 256)), own=st.integers(1, 400))
    def start(self, stream: int, shared: int, own: int) -> None:
        """A new sequence takes what the pool has of it, but for one token at least."""
        tokens = [stream] * shared + [own, *range(own)]
        run = Run(tokens, self.ledger.new())
        keys = page_keys(ROOT, tokens)
        hits = self.ledger.match(keys, (len(tokens) - 1) // PAGE)
        if hits:
            self.seen["hit"] += 1
            self.ledger.adopt(run.holding, keys, hits)
            run.computed = hits * PAGE
        self.runs.append(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), own=st.integers(1, 200))
    def fork(self, data: st.DataObject, own: int) -> None:
        base = data.draw(st.sampled_from(self.runs))
        run = Run([*base.tokens[: base.computed], -own, *range(own)], self.ledger.new(), base.computed, base)
        before = self._snapshot()
        try:
            moves = self.ledger.fork(base.holding, base.computed, run.holding)
        except PoolFull:
            self.seen["fork full"] += 1
            self._unchanged(before)
            return
        assert len(moves) == (len(self.ledger.groups) if base.computed % PAGE else 0)
        for move in moves:
            self._cell("plain", move.group, move.target).clear()
            self._cell("plain", move.group, move.target).update(self._cell("plain", move.group, move.source))
        self.runs.append(run)

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(),
        n=st.sampled_from((1, 1, 7, 64, 150)),
        share=st.sampled_from((True, True, True, False)),
    )
    def step(self, data: st.DataObject, n: int, share: bool) -> None:
        """Several sequences store up to n tokens each, then all settle, then pages are packed."""
        grants = []
        for run in data.draw(st.lists(st.sampled_from(self.runs), min_size=1, max_size=4, unique_by=id)):
            upto = min(len(run.tokens), run.computed + n)
            before = self._snapshot()
            try:
                self.ledger.extend(run.holding, upto)
            except PoolFull:
                self.seen["full"] += 1
                self._unchanged(before)
                continue
            grants.append((run, upto))
        for run, upto in grants:
            self._read(run)
            self._write(run, upto)
            run.computed = upto
        moves = [
            m
            for run, _ in grants
            for m in self.ledger.settle(run.holding, run.tokens, run.computed, share=share)
        ]
        self._pack(moves)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.runs))
        self.ledger.release(run.holding)
        self.runs.remove(run)

    # what must hold

    @invariant()
    def conserved(self) -> None:
        audit(self.ledger, [run.holding for run in self.runs])
        if not self.runs:
            assert held(self.ledger) == 0

    @invariant()
    def everyone_reads_his_own(self) -> None:
        for run in self.runs:
            self._read(run)

    def teardown(self) -> None:
        for run in self.runs:
            self.ledger.release(run.holding)
        audit(self.ledger, [])

    # how

    def _cell(self, kind: str, group: int, slot: int) -> dict[int, int]:
        return self.cells.setdefault((kind, group, slot), {})

    def _write(self, run: Run, upto: int) -> None:
        for n, group in enumerate(self.ledger.groups):
            for position in range(run.computed, upto):
                page = run.holding.tables[n][position // PAGE]
                assert group.allocator.refs[page] == 1, "an open page has two holders"
                assert group.allocator.kind(page) == "plain"
                slot = ~int(group.allocator.address[page])
                self._cell("plain", n, slot)[position % PAGE] = text_up_to(run.tokens, position)

    def _read(self, run: Run) -> None:
        """Every page a query at `computed` needs is there and holds this sequence's text."""
        for n, group in enumerate(self.ledger.groups):
            table = run.holding.tables[n]
            for p in range(group.first_needed(run.computed), -(-run.computed // PAGE)):
                assert table[p] != GONE, f"page {p} of group {n} is gone at {run.computed}"
                address = int(group.allocator.address[table[p]])
                cell = self._cell("packed", n, address) if address >= 0 else self._cell("plain", n, ~address)
                positions = range(p * PAGE, min(run.computed, (p + 1) * PAGE))
                assert [cell[i % PAGE] for i in positions] == [text_up_to(run.tokens, i) for i in positions]
            self.seen["gone"] += GONE in table

    def _pack(self, moves: list[Move]) -> None:
        """All sources are read before anything is written, as one batched kernel would."""
        read = [(m, dict(self._cell("plain", m.group, m.source))) for m in moves]
        assert len({(m.group, m.target) for m in moves}) == len(moves), "two pages packed into one slot"
        for move, content in read:
            assert len(content) == PAGE, "an incomplete page was packed"
            self.cells[("packed", move.group, move.target)] = content
            self.seen["packed"] += 1

    def _snapshot(self) -> Any:
        return copy.deepcopy(
            [(g.allocator.address, g.allocator.refs, g.allocator._slots) for g in self.ledger.groups]
            + [run.holding for run in self.runs]
        )

    def _unchanged(self, before: Any) -> None:
        assert str(self._snapshot()) == str(before), "a refused call changed something"


@pytest.mark.parametrize(
    ("examples", "steps"),
    [pytest.param(60, 40), pytest.param(200, 80, marks=pytest.mark.slow)],
    ids=("few", "many"),
)
def test_ledger_histories(examples: int, steps: int) -> None:
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        type("Histories", (LedgerHistories,), {"seen": seen}),
        settings=settings(settings.get_profile("same"), max_examples=examples, stateful_step_count=steps),
    )
    assert {name for name, n in seen.items() if n} >= {"hit", "full", "fork full", "gone", "packed"}, seen


def test_a_hit_compares_tokens_not_only_hashes() -> None:
    """A page with the same digest but other tokens, or another parent, is no hit."""
    ledger = Ledger.build([(4, 0)], [None], [False], ROOT, recent=64, exact_pages=1)
    tokens = list(range(PAGE))
    holding = ledger.new()
    ledger.extend(holding, PAGE)
    ledger.settle(holding, tokens, PAGE)
    [key], [other] = page_keys(ROOT, tokens), page_keys(ROOT, [*tokens[:-1], 999])
    index = ledger.groups[0].index
    assert index.page(key) == holding.tables[0][0] and ledger.match([key], 1) == 1
    for wrong in (key._replace(tokens=other.tokens), key._replace(parent=b"other")):
        assert ledger.match([wrong], 1) == index.count([wrong]) == 0


def test_a_young_page_waits_for_recent_tokens_and_the_first_page_stays_plain() -> None:
    ledger = Ledger.build([(8, 8)], [None], [True], ROOT, recent=64, exact_pages=1)
    tokens = list(range(400))
    holding = ledger.new()
    packed = []
    for computed in range(1, 401):
        ledger.extend(holding, computed)
        packed += [(computed, m) for m in ledger.settle(holding, tokens, computed)]
    assert [computed for computed, _ in packed] == [192, 256, 320, 384]
    assert ledger.groups[0].allocator.kind(holding.tables[0][0]) == "plain"


def test_a_page_that_finds_no_packed_slot_is_packed_when_there_is_one() -> None:
    ledger = Ledger.build([(8, 1)], [None], [True], ROOT, recent=0, exact_pages=0)
    first, second = ledger.new(), ledger.new()
    for n, holding in enumerate((first, second)):
        ledger.extend(holding, PAGE)
        assert len(ledger.settle(holding, [n] * PAGE, PAGE)) == 1 - n
    ledger.release(first)
    ledger.extend(second, PAGE + 1)
    assert len(ledger.settle(second, [1] * PAGE + [2], PAGE + 1)) == 1
