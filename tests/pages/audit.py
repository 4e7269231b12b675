"""What must be true of a ledger whatever happened to it, counted from the outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.pages.ledger import GONE, GroupLedger, Holding, Ledger

__all__ = ["audit", "held"]


def audit(ledger: Ledger, holdings: Iterable[Holding]) -> None:
    """free + cached + live = total in every group and kind, by count and slot by slot.

    `holdings` are all that exist: every reference must be one of theirs, and every one of theirs a reference.
    """
    known = list(holdings)
    for n, group in enumerate(ledger.groups):
        references = Counter(page for h in known for page in h.tables[n] if page != GONE)
        for page, refs in enumerate(group.allocator.refs):
            assert refs == references[page], (
                f"group {n}: page {page} has {refs} refs, {references[page]} holders"
            )
        for kind in ("plain", "packed"):
            audit_kind(group, kind, set(references))


def audit_kind(group: GroupLedger, kind: str, live: set[int]) -> None:
    """Each slot of `kind` is in exactly one state, and the counts say so."""
    allocator = group.allocator
    packed = kind == "packed"
    states = {
        "free": list(allocator._slots[kind]),
        "cached": [slot(allocator.address[p], packed) for p in allocator._cached[kind]],
        "live": [slot(allocator.address[p], packed) for p in live if (allocator.address[p] >= 0) == packed],
    }
    count = allocator.count(kind)
    assert count.conserved, count
    assert (count.free, count.cached, count.live) == tuple(len(slots) for slots in states.values()), (
        count,
        states,
    )
    assert sorted(s for slots in states.values() for s in slots) == list(range(count.total)), states
    assert not live & set(allocator._cached[kind]), "a cached page has a holder"
    for page in allocator._cached[kind]:
        assert page in group.index._by_page, f"cached page {page} cannot be found"


def slot(address: int, packed: bool) -> int:
    assert (address >= 0) == packed, f"address {address} is of the other kind"
    return int(address) if packed else ~int(address)


def held(ledger: Ledger) -> int:
    """Pages with references, all groups together."""
    return sum(g.allocator.live_pages for g in ledger.groups)
