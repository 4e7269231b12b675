"""Which pages of one layer group are in use: integers only.

A page has an id for life, a reference count, and an address that changes once, when it is sealed:

    address >= 0   packed slot `address`
    address <  0   plain slot  `~address`

Slots of either kind are in one of three states, and `free + cached + live = total` holds for both kinds:

    free     no page
    live     its page has references
    cached   its page has none left but keeps a key: a later prompt may take it, a full pool may evict it
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import PoolFull

__all__ = ["Allocator", "Count"]

NO_ADDRESS = np.iinfo(np.int32).min


@dataclass(frozen=True)
class Count:
    """Slots of one kind by state."""

    live: int
    cached: int
    free: int
    total: int

    @property
    def conserved(self) -> bool:
        return self.live + self.cached + self.free == self.total


class Allocator:
    """Hands out pages of one group and takes them back; evicts cached pages, oldest first, when none is
    free."""

    def __init__(
        self, plain_slots: int, packed_slots: int, on_evict: Callable[[int], None] = lambda page: None
    ):
        pages = plain_slots + packed_slots
        self.totals = {"plain": plain_slots, "packed": packed_slots}
        self._slots = {"plain": list(range(plain_slots))[::-1], "packed": list(range(packed_slots))[::-1]}
        self._ids = list(range(pages))[::-1]
        self.address: npt.NDArray[np.int32] = np.full(pages, NO_ADDRESS, np.int32)
        self.refs: npt.NDArray[np.int32] = np.zeros(pages, np.int32)
        self._keyed: set[int] = set()
        self._cached: dict[str, OrderedDict[int, None]] = {"plain": OrderedDict(), "packed": OrderedDict()}
        self._live = {"plain": 0, "packed": 0}
        self._on_evict = on_evict

    def kind(self, page: int) -> str:
        return "packed" if self.address[page] >= 0 else "plain"

    def first_plain(self, pages: array[int], start: int) -> int:
        """Where among `pages` (negative: none) the first plain one from `start` on is, or their number."""
        some = np.frombuffer(pages, np.int32)[start:]
        plain = np.flatnonzero((some >= 0) & (self.address[some] < 0))
        return start + int(plain[0]) if len(plain) else max(start, len(pages))

    def available(self, kind: str) -> int:
        """Slots of `kind` that are free or could be evicted."""
        return len(self._slots[kind]) + len(self._cached[kind])

    def take(self) -> int:
        """A new plain page with one reference, or PoolFull."""
        slot = self._take_slot("plain")
        page = self._ids.pop()
        self.address[page] = ~slot
        self.refs[page] = 1
        self._live["plain"] += 1
        return page

    def share(self, pages: array[int]) -> None:
        """One more reference to each of `pages`, all different; cached ones become live again."""
        some = np.asarray(pages, np.int32)
        assert not (some < 0).any(), "a page that is gone cannot be shared"
        for page in some[self.refs[some] == 0].tolist():
            del self._cached[self.kind(page)][page]
            self._live[self.kind(page)] += 1
        self.refs[some] += 1

    def release(self, pages: array[int]) -> None:
        """One reference less to each of `pages` (negative: none), all different; at none a page is cached if
        it has a key, else free. The first are evicted first."""
        some = np.asarray(pages, np.int32)
        some = some[some >= 0]
        assert (self.refs[some] > 0).all(), "a page was released more often than it was taken"
        self.refs[some] -= 1
        for page in some[self.refs[some] == 0].tolist():
            self._live[self.kind(page)] -= 1
            if page in self._keyed:
                self._cached[self.kind(page)][page] = None
            else:
                self._free(page)

    def give_key(self, page: int) -> None:
        """From now on the page outlives its last reference until it is evicted."""
        self._keyed.add(page)

    def seal(self, page: int) -> tuple[int, int]:
        """(plain slot, packed slot): the page moves to a packed slot; its plain slot is free after the
        copy."""
        packed = self._take_slot("packed")
        plain = ~int(self.address[page])
        self.address[page] = packed
        self._slots["plain"].append(plain)
        if self.refs[page]:
            self._live["plain"] -= 1
            self._live["packed"] += 1
        return plain, packed

    def count(self, kind: str) -> Count:
        return Count(self._live[kind], len(self._cached[kind]), len(self._slots[kind]), self.totals[kind])

    @property
    def live_pages(self) -> int:
        return sum(self._live.values())

    def _take_slot(self, kind: str) -> int:
        if not self._slots[kind]:
            self._evict(kind)
        return self._slots[kind].pop()

    def _evict(self, kind: str) -> None:
        if not self._cached[kind]:
            raise PoolFull(
                f"all {self.totals[kind]} {kind} pages are held by running requests and documents; "
                "release a document, send fewer requests at once, or raise --memory"
            )
        page, _ = self._cached[kind].popitem(last=False)
        self._keyed.discard(page)
        self._on_evict(page)
        self._free(page)

    def _free(self, page: int) -> None:
        address = int(self.address[page])
        self._slots["packed" if address >= 0 else "plain"].append(address if address >= 0 else ~address)
        self.address[page] = NO_ADDRESS
        self._ids.append(page)
