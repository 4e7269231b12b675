"""Documents: named, pinned prefixes that requests are forked from."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from octavo.engine.sequence import Sequence
from octavo.errors import DocumentInUse, OctavoError, UnknownDocument
from octavo.pages.ledger import Holding

__all__ = ["Document", "give_back"]


@dataclass(eq=False)
class Document:
    """A text that was prefilled once and is held until released; usable as a context manager.

    name    what requests call it by
    raw     whether it was tokenised as bare text (True) or as the start of a user's turn in the chat template
    users   requests that read it now; while there are any, `release` raises DocumentInUse
    """

    name: str
    raw: bool
    sequence: Sequence
    _release: Callable[[Document], None]
    _bytes: Callable[[Holding], int]
    created: float = field(default_factory=time.time)
    users: int = 0
    queued: bool = False
    ready: bool = False
    released: bool = False
    error: OctavoError | None = None

    @property
    def tokens(self) -> int:
        """Its length in tokens, chat prefix included."""
        return len(self.sequence.tokens)

    @property
    def pages(self) -> int:
        """Pages it holds in the first layer group, its open page included."""
        return sum(page >= 0 for page in self.sequence.holding.tables[0])

    @property
    def bytes(self) -> int:
        """Bytes of all pages it holds, those it shares with others included."""
        return self._bytes(self.sequence.holding)

    def release(self) -> None:
        """Let its pages go; they stay findable by content until the pool needs their room."""
        self._release(self)
        self.released = True

    def __enter__(self) -> Document:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        if error is None:
            self.release()
        else:  # what went wrong inside matters more than requests that still read the document
            with suppress(OctavoError):
                self.release()


def give_back(document: Document) -> None:
    """Release a document nobody waits for any more, if it is still there and unused."""
    with suppress(UnknownDocument, DocumentInUse):
        document.release()
