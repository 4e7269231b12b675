"""What the server needs of an engine, and no more: `octavo.Engine` and `octavo.AsyncEngine` have it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from octavo.engine.requests import Delta, Prompt, Sampling

__all__ = ["AsyncEngine", "Document", "Engine", "Recipe", "Stats", "Tokenizer"]


class Tokenizer(Protocol):
    """The part of a tokenizer that checks and echoes prompts."""

    @property
    def has_chat(self) -> bool: ...
    @property
    def vocab_size(self) -> int: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


class Recipe(Protocol):
    """The recipe's short name, "k:v"."""

    @property
    def pair(self) -> str: ...


class Document(Protocol):
    """A named, pinned run of pages."""

    @property
    def name(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def raw(self) -> bool: ...
    @property
    def created(self) -> float: ...
    @property
    def pages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def users(self) -> int: ...


class Engine(Protocol):
    """The facts of an engine that do not need its thread."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def context(self) -> int: ...
    @property
    def max_waiting(self) -> int: ...
    @property
    def documents(self) -> Mapping[str, Document]: ...


class Stats(Protocol):
    """A snapshot of the engine's counts."""

    def as_dict(self) -> dict[str, Any]: ...


class AsyncEngine(Protocol):
    """The engine behind its worker thread; every call may come from the event loop."""

    async def samples(
        self,
        prompt: Prompt,
        samplings: Sequence[Sampling],
        *,
        document: str | None = None,
        raw: bool = False,
    ) -> list[AsyncGenerator[Delta, None]]: ...
    async def document(
        self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False
    ) -> Document: ...
    async def release(self, name: str) -> None: ...
    def stats(self) -> Stats: ...
    async def close(self) -> None: ...
