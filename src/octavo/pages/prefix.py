"""Finding pages by the tokens they hold.

The key of page p is a hash of the key of page p − 1 and the page's 64 tokens; the chain starts from what the
model and the recipe are, so pages of different formats never meet. A hit compares parent key and tokens as
well: by induction over the chain, a page is only ever shared between equal token sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.formats.base import PAGE
from octavo.pages.allocator import Allocator

__all__ = ["Key", "PrefixIndex", "chain", "page_keys"]

Key = bytes


@dataclass(frozen=True)
class Entry:
    page: int
    parent: Key
    tokens: tuple[int, ...]


def chain(parent: Key, tokens: Sequence[int]) -> Key:
    """The key of a page holding `tokens` after the page with key `parent`."""
    return hashlib.blake2b(parent + np.asarray(tokens, np.int64).tobytes(), digest_size=16).digest()


def page_keys(root: Key, tokens: Sequence[int], known: Sequence[Key] = ()) -> list[Key]:
    """Keys of all complete pages of `tokens`, continuing the list `known`."""
    keys = list(known)
    for p in range(len(keys), len(tokens) // PAGE):
        keys.append(chain(keys[-1] if keys else root, tokens[p * PAGE : (p + 1) * PAGE]))
    return keys


class PrefixIndex:
    """key → page of one layer group. Holds no references: evicted pages drop out by `forget`."""

    def __init__(self, root: Key):
        self.root = root
        self._by_key: dict[Key, Entry] = {}
        self._by_page: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: Key, parent: Key, tokens: Sequence[int]) -> int | None:
        """The page with this key, parent and tokens, or None."""
        entry = self._by_key.get(key)
        if entry is None or entry.parent != parent or entry.tokens != tuple(tokens):
            return None
        return entry.page

    def add(self, allocator: Allocator, page: int, key: Key, parent: Key, tokens: Sequence[int]) -> None:
        """Make a complete page findable; the first page of a key stays, later twins remain private."""
        if key not in self._by_key and page not in self._by_page:
            self._by_key[key] = Entry(page, parent, tuple(tokens))
            self._by_page[page] = key
            allocator.give_key(page)

    def forget(self, page: int) -> None:
        """The page was evicted."""
        key = self._by_page.pop(page, None)
        if key is not None:
            del self._by_key[key]
