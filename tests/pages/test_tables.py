"""Whole tables of pages: what is shared, given back, and known to be packed."""

from __future__ import annotations

from array import array

import pytest

from octavo.formats.base import PAGE
from octavo.pages.allocator import Allocator
from octavo.pages.ledger import Holding, Ledger
from octavo.pages.prefix import page_keys

ROOT, TOKENS = b"root", list(range(8 * PAGE + 5))


def filled() -> tuple[Ledger, Holding]:
    """Eight complete pages and an open one; the first is exact, the last complete one young."""
    ledger = Ledger.build([(20, 20)], [None], [True], ROOT, recent=64, exact_pages=1)
    holding = ledger.new()
    ledger.extend(holding, len(TOKENS))
    assert len(ledger.settle(holding, TOKENS, len(TOKENS))) == 6
    return ledger, holding


@pytest.mark.parametrize("by", ["fork", "adopt"])
def test_who_shares_packed_pages_seals_only_what_is_left(by: str) -> None:
    ledger, source = filled()
    other = ledger.new()
    if by == "fork":
        ledger.fork(source, len(TOKENS), other)
    else:
        ledger.adopt(other, page_keys(ROOT, TOKENS), 8)
    assert other.sealed == 7 and list(other.tables[0][:8]) == list(source.tables[0][:8])
    own = [*TOKENS[: 8 * PAGE], *range(-2 * PAGE, 0)]
    ledger.extend(other, len(own))
    moves = ledger.settle(other, own, len(own))
    assert len(moves) == 2 and other.sealed == 9  # the young page and the first of its own


def test_pages_of_a_table_are_given_back_last_first() -> None:
    """The end of a text is evicted before its beginning, which others may still begin with."""
    ledger, holding = filled()
    pages = list(holding.tables[0])
    ledger.release(holding)
    evicted = []
    allocator = ledger.groups[0].allocator
    assert allocator.count("packed").cached == 6 and allocator.count("plain").cached == 2
    allocator._on_evict = evicted.append
    for _ in range(20):
        allocator.take()
    assert evicted == [pages[7], pages[0]]


def test_references_are_counted_page_by_page() -> None:
    allocator = Allocator(4, 0)
    pages = array("i", [allocator.take() for _ in range(3)])
    allocator.share(pages[:2])
    allocator.release(array("i", [-1, *pages]))
    assert allocator.refs[list(pages)].tolist() == [1, 1, 0] and allocator.count("plain").live == 2
    with pytest.raises(AssertionError, match="more often"):
        allocator.release(pages)
    with pytest.raises(AssertionError, match="gone"):
        allocator.share(array("i", [-1]))
