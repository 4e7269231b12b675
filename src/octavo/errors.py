"""Every error Octavo raises on purpose.

OctavoError                    what happened, the numbers, the next move
├── InvalidRequest             the caller's input is wrong (HTTP 400)
│   ├── UnknownName            a model, format, option or field that does not exist; suggests the nearest
│   ├── PromptTooLong          the prompt can never fit the context or the pool
│   └── InvalidFile            unreadable, binary, corrupt or truncated file
├── UnsupportedModel           the architecture or one of its settings cannot be served (HTTP 400)
├── UnknownDocument            no document of that name (HTTP 404)
├── DocumentInUse              a sequence still reads the document (HTTP 409)
├── Overloaded                 the queue is full; try again later (HTTP 429)
├── NotFinite                  the model's output for this request is no number (HTTP 500)
├── PoolFull                   no page can be freed for this step (HTTP 503)
└── EngineStopped              the engine was closed or crashed; the request ends here (HTTP 503)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "DocumentInUse",
    "EngineStopped",
    "InvalidFile",
    "InvalidRequest",
    "NotFinite",
    "OctavoError",
    "Overloaded",
    "PoolFull",
    "PromptTooLong",
    "UnknownDocument",
    "UnknownName",
    "UnsupportedModel",
    "unknown",
]


class OctavoError(Exception):
    """Base of all deliberate errors; the message states the fact, the numbers and the next move."""


class InvalidRequest(OctavoError, ValueError):
    """The input of a call or a request is wrong; `field` is the argument at fault, if it is a single one."""

    def __init__(self, message: str, *, field: str | None = None):
        super().__init__(message)
        self.field = field


class UnknownName(InvalidRequest):
    """A name that does not exist where it was used."""


class PromptTooLong(InvalidRequest):
    """The prompt, or prompt and answer together, can never fit."""


class InvalidFile(InvalidRequest):
    """A file cannot be read as what it should be."""


class UnsupportedModel(OctavoError):
    """The model cannot be served; the message says which of its properties stands in the way."""


class UnknownDocument(OctavoError, LookupError):
    """No document of that name is held."""


class DocumentInUse(OctavoError):
    """The document cannot be released while sequences read it."""


class Overloaded(OctavoError):
    """More requests wait than the engine accepts."""


class PoolFull(OctavoError):
    """The pool has no page left that could be freed."""


class NotFinite(OctavoError):
    """The model computed infinities or NaN for one request; others go on."""

    def __init__(self, dtype: str, generated: int):
        cause = f"its weights or activations overflow {dtype} on this prompt; try --dtype float32"
        if dtype == "float32":
            cause = "its weights hold infinities or NaN, or make them on this prompt; check the files"
        super().__init__(
            f"the model's logits for token {generated + 1} of this answer are not finite: {cause}"
        )


class EngineStopped(OctavoError):
    """The engine no longer runs."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """An UnknownName that suggests the nearest of `known`, or lists them when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(names)
    return UnknownName(f"unknown {kind} {name!r}; {hint}")
