"""Who holds which page, over all layer groups: integers only.

A sequence's pages, 64 tokens each, with `computed` tokens stored:

    |-- exact --|------- packed -------|-- young, plain --|-- open --|
    0          exact_pages             sealed             computed // 64

Every complete page has a key and can be shared; only the open page is private. In a sliding group pages that
every future query is too far from are given back (`GONE` in the table) and stay findable until evicted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.errors import PoolFull
from octavo.formats.base import PAGE
from octavo.pages.allocator import Allocator
from octavo.pages.prefix import Key, PrefixIndex, page_keys
from octavo.pages.sizing import ceil_pages

__all__ = ["GONE", "GroupLedger", "Holding", "Ledger", "Move"]

GONE = -1


@dataclass(frozen=True)
class Move:
    """Copy or pack: from plain slot `source` of group `group` to slot `target`."""

    group: int
    source: int
    target: int


@dataclass
class Holding:
    """The pages of one sequence: per group a table of `ledger`'s pages, and the keys of complete ones."""

    ledger: Ledger = field(repr=False)
    tables: list[array[int]]
    keys: list[Key] = field(default_factory=list)
    registered: int = 0
    sealed: int = 0


@dataclass
class GroupLedger:
    """One layer group's pages. `window` in tokens, None for full attention; `packs` if pages are ever
    sealed."""

    allocator: Allocator
    index: PrefixIndex
    window: int | None
    packs: bool

    def first_needed(self, computed: int) -> int:
        """First page that a query at position `computed` still sees."""
        return 0 if self.window is None else max(0, computed - self.window + 1) // PAGE


class Ledger:
    """All groups together. Calls either do all they say or raise PoolFull and change nothing."""

    def __init__(self, groups: list[GroupLedger], root: bytes, *, recent: int, exact_pages: int):
        self.groups = groups
        self.root = root
        self.recent = recent
        self.exact_pages = exact_pages

    @classmethod
    def build(
        cls,
        slots: list[tuple[int, int]],
        windows: list[int | None],
        packs: list[bool],
        root: bytes,
        **settings: int,
    ) -> Ledger:
        """A ledger over groups with (plain, packed) `slots` each."""
        groups = []
        for (plain, packed), window, seals in zip(slots, windows, packs, strict=True):
            index = PrefixIndex()
            groups.append(GroupLedger(Allocator(plain, packed, index.forget), index, window, seals))
        return cls(groups, root, **settings)

    def new(self) -> Holding:
        return Holding(self, [array("i") for _ in self.groups])

    # finding

    def match(self, keys: Sequence[Key], pages: int) -> int:
        """How many of the first `pages` pages of these keys can be read from the pool."""
        sliding = [g for g in self.groups if g.window is not None]
        for group in self.groups:
            if group.window is None:
                pages = group.index.count(keys[:pages])
        while pages and not all(window_held(g, keys, pages) for g in sliding):
            pages -= 1
        return pages

    def adopt(self, holding: Holding, keys: Sequence[Key], pages: int) -> None:
        """Add references to the first `pages` pages of these keys (as far as `match` found them) beyond those
        held."""
        for group, table in zip(self.groups, holding.tables, strict=True):
            start = max(len(table), group.first_needed(pages * PAGE))
            table.extend([GONE] * (start - len(table)))
            found = array("i", [group.index.page(key) for key in keys[start:pages]])
            group.allocator.share(found)
            table.extend(found)
        holding.keys = list(keys[:pages])
        holding.registered = pages
        plain = [g.allocator.first_plain(t, self.exact_pages) for g, t in self._packing(holding)]
        holding.sealed = min([pages, *plain])

    def fork(self, source: Holding, computed: int, holding: Holding) -> list[Move]:
        """Let an empty `holding` share all complete pages of `source` and take a copy of its open page."""
        complete, rest = divmod(computed, PAGE)
        if rest:
            self._require([1] * len(self.groups))
        for group, mine, theirs in zip(self.groups, holding.tables, source.tables, strict=True):
            start = group.first_needed(computed)
            mine.extend([GONE] * start)
            group.allocator.share(theirs[start:complete])
            mine.extend(theirs[start:complete])
        holding.keys = source.keys[:complete]
        holding.registered = complete
        holding.sealed = min(source.sealed, complete)
        if not rest:
            return []
        copies = []
        for n, (mine, theirs) in enumerate(zip(holding.tables, source.tables, strict=True)):
            allocator = self.groups[n].allocator
            mine.append(allocator.take())
            copies.append(
                Move(n, ~int(allocator.address[theirs[complete]]), ~int(allocator.address[mine[-1]]))
            )
        return copies

    # growing and shrinking

    def missing(self, holding: Holding, upto: int) -> list[int]:
        """New pages each group needs before tokens [0, upto) can be stored."""
        return [max(0, ceil_pages(upto) - len(table)) for table in holding.tables]

    def extend(self, holding: Holding, upto: int) -> None:
        """Take open pages so that tokens [0, upto) have slots."""
        missing = self.missing(holding, upto)
        self._require(missing)
        for group, table, n in zip(self.groups, holding.tables, missing, strict=True):
            table.extend(group.allocator.take() for _ in range(n))

    def release(self, holding: Holding) -> None:
        """Give all pages back; those with keys stay findable."""
        for group, table in zip(self.groups, holding.tables, strict=True):
            group.allocator.release(table[::-1])
            del table[:]
        holding.keys = []
        holding.registered = holding.sealed = 0

    def drop(self, holding: Holding, first: int, pages: int) -> None:
        """Give back `pages` complete pages from page `first` on; those behind them move up. They were made in
        sight of the dropped ones and may not be found by their new tokens: settle with share=False."""
        end = first + pages
        for group, table in zip(self.groups, holding.tables, strict=True):
            group.allocator.release(table[first:end][::-1])
            del table[first:end]
        del holding.keys[first:end]
        holding.registered = len(holding.keys)
        holding.sealed = max(min(holding.sealed, first), holding.sealed - pages)

    def settle(
        self, holding: Holding, tokens: Sequence[int], computed: int, *, share: bool = True
    ) -> list[Move]:
        """After a step: make new complete pages findable, let slid pages go, and seal those old enough.

        Returns the (plain, packed) moves whose bytes must be packed before anything else is written.
        A page that finds no packed slot stays plain and is tried again at the next step.
        """
        complete = computed // PAGE
        if share:
            self._register(holding, tokens, complete)
        self._slide(holding, computed)
        return self._seal(holding, complete, computed)

    def _register(self, holding: Holding, tokens: Sequence[int], complete: int) -> None:
        if complete == holding.registered:
            return
        holding.keys = page_keys(self.root, tokens, holding.keys, complete)
        for p in range(holding.registered, complete):
            for group, table in zip(self.groups, holding.tables, strict=True):
                if table[p] != GONE:
                    group.index.add(group.allocator, table[p], holding.keys[p])
        holding.registered = complete

    def _slide(self, holding: Holding, computed: int) -> None:
        for group, table in zip(self.groups, holding.tables, strict=True):
            begin = end = min(group.first_needed(computed), len(table))
            while begin and table[begin - 1] != GONE:
                begin -= 1
            if begin < end:
                group.allocator.release(table[begin:end][::-1])
                table[begin:end] = array("i", [GONE] * (end - begin))

    def _seal(self, holding: Holding, complete: int, computed: int) -> list[Move]:
        moves: list[Move] = []
        old = min(complete, max(0, computed - self.recent) // PAGE)
        for p in range(max(holding.sealed, self.exact_pages), old):
            for n, (group, table) in enumerate(zip(self.groups, holding.tables, strict=True)):
                if not group.packs or table[p] == GONE or group.allocator.kind(table[p]) == "packed":
                    continue
                if not group.allocator.available("packed"):
                    return moves
                moves.append(Move(n, *group.allocator.seal(table[p])))
            holding.sealed = p + 1
        return moves

    # helpers

    def _packing(self, holding: Holding) -> list[tuple[GroupLedger, array[int]]]:
        return [(g, table) for g, table in zip(self.groups, holding.tables, strict=True) if g.packs]

    def _require(self, pages: list[int]) -> None:
        for group, n in zip(self.groups, pages, strict=True):
            free = group.allocator.available("plain")
            if n > free:
                total = group.allocator.totals["plain"]
                raise PoolFull(
                    f"{n} plain pages needed, {free} of {total} free; "
                    "release a document, send fewer requests at once, "
                    "or raise --memory"
                )


def window_held(group: GroupLedger, keys: Sequence[Key], pages: int) -> bool:
    """Whether a sequence that goes on behind `pages` pages finds those it still sees."""
    start = group.first_needed(pages * PAGE)
    return group.index.count(keys[start:pages]) == pages - start
