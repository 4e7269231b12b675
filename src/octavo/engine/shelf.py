"""The documents an engine holds, by name. Callers hold the engine's lock, but to look: `held`, `find` and
`make` need none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from octavo.engine.core import Core
from octavo.engine.documents import Document
from octavo.engine.sequence import Sequence
from octavo.errors import DocumentInUse, InvalidRequest, UnknownDocument, unknown

__all__ = ["Shelf"]


class Shelf:
    """Puts documents up, finds them, takes them down."""

    def __init__(self, core: Core):
        self.core = core

    @property
    def held(self) -> Mapping[str, Document]:
        """Documents that are ready."""
        return MappingProxyType({n: d for n, d in list(self.core.documents.items()) if d.ready})

    def make(
        self, sequence: Sequence, raw: bool, name: str | None, release: Callable[[Document], None]
    ) -> Document:
        """A document that is not up yet."""
        if not isinstance(name, str | None):
            raise InvalidRequest(f"name is a {type(name).__name__}; it must be text, or None", field="name")
        return Document(name or "", raw, sequence, release, self.core.memory.bytes_of)

    def begin(self, document: Document) -> None:
        """Queue a document's prefill under its name, or under the first free "document-n"; once."""
        if document.queued:
            raise InvalidRequest(f"document {document.name!r} was queued before; prepare it again")
        taken = self.core.documents
        free = (f"document-{n}" for n in range(1, len(taken) + 2))
        name = document.name or next(n for n in free if n not in taken)
        if name in taken:
            message = f"a document named {name!r} exists; release it first or choose another name"
            raise InvalidRequest(message, field="name")
        self.core.scheduler.add(document.sequence)
        document.name, document.queued = name, True
        taken[name] = document

    def find(self, document: Document | str | None) -> Document | None:
        """The document meant, or UnknownDocument; None for None."""
        if document is None:
            return None
        if not isinstance(document, Document | str):
            message = f"document is a {type(document).__name__}; it must be a Document or the name of one"
            raise InvalidRequest(message, field="document")
        name = document if isinstance(document, str) else document.name
        held = self.held
        found = held.get(name)
        if found is not None and isinstance(document, Document) and found is not document:
            raise UnknownDocument(
                f"document {name!r} is not the one this engine holds under that name; make it again, or give "
                "the name alone to read the other"
            )
        if found is None:
            raise UnknownDocument(
                str(unknown("document", name, held)) if held else f"no document {name!r} is held"
            )
        return found

    def check(self, document: Document | None) -> None:
        """UnknownDocument where a document that was found before a prompt was tokenised has gone since."""
        if document is not None and self.core.documents.get(document.name) is not document:
            raise UnknownDocument(
                f"document {document.name!r} was released before the request was queued; make it again"
            )

    def release(self, document: Document) -> None:
        """Let a document go; DocumentInUse while requests read it."""
        name = document.name
        if self.core.documents.get(name) is not document:
            raise UnknownDocument(f"document {name!r} was released before")
        if document.users:
            raise DocumentInUse(
                f"document {name!r} is read by {document.users} requests; wait for them or abort them"
            )
        del self.core.documents[name]
        if document.ready:
            self.core.memory.ledger.release(document.sequence.holding)
        else:
            self.core.scheduler.remove(document.sequence)
            document.error = UnknownDocument(f"document {name!r} was released before it was ready")
