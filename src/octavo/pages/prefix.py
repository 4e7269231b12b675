"""Finding pages by the tokens they hold.

The key of page p is its 64 tokens, the digest of page p − 1's key, and a digest of both; the chain starts
from what the model and the recipe are, so pages of different formats never meet. Equal keys have equal tokens
and parents, not only equal digests: by induction over the chain, a page is only ever shared between equal
token sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from octavo.formats.base import PAGE
from octavo.pages.allocator import Allocator

__all__ = ["Key", "PrefixIndex", "page_keys"]


class Key(NamedTuple):
    """Names a complete page. `tokens` are int32."""

    digest: bytes
    parent: bytes
    tokens: bytes


def page_keys(
    root: bytes, tokens: Sequence[int], known: Sequence[Key] = (), pages: int | None = None
) -> list[Key]:
    """Keys of all complete pages of `tokens`, or of the first `pages`, continuing the list `known`."""
    keys, size = list(known), 4 * PAGE
    end = PAGE * (len(tokens) // PAGE if pages is None else pages)
    data = np.asarray(tokens[len(keys) * PAGE : end], np.int32).tobytes()
    parent = keys[-1].digest if keys else root
    for at in range(0, len(data), size):
        page = data[at : at + size]
        digest = hashlib.blake2b(parent + page, digest_size=16).digest()
        keys.append(Key(digest, parent, page))
        parent = digest
    return keys


class PrefixIndex:
    """key → page of one layer group. Holds no references: evicted pages drop out by `forget`."""

    def __init__(self) -> None:
        self._by_key: dict[Key, int] = {}
        self._by_page: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def page(self, key: Key) -> int:
        """The page with this key, which there is."""
        return self._by_key[key]

    def count(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have pages, without a gap."""
        return next((n for n, key in enumerate(keys) if key not in self._by_key), len(keys))

    def add(self, allocator: Allocator, page: int, key: Key) -> None:
        """Make a complete page findable; the first page of a key stays, later twins remain private."""
        if key not in self._by_key and page not in self._by_page:
            self._by_key[key] = page
            self._by_page[page] = key
            allocator.give_key(page)

    def forget(self, page: int) -> None:
        """The page was evicted."""
        key = self._by_page.pop(page, None)
        if key is not None:
            del self._by_key[key]
