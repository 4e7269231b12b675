"""What the measurements need of an engine and of a tokenizer; `octavo.Engine` has all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Scorer", "TextTokenizer"]


class TextTokenizer(Protocol):
    """The parts of `octavo.model.tokenizer.Tokenizer` that are used here."""

    bos_id: int | None
    eos_ids: tuple[int, ...]

    @property
    def has_chat(self) -> bool: ...
    def encode(self, text: str, *, special: bool = True) -> list[int]: ...
    def decode(self, tokens: Iterable[int]) -> str: ...
    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]: ...


class Scorer(Protocol):
    """An engine that can be teacher-forced: final hidden states, and the head that makes logits of them."""

    def score(self, tokens: Sequence[int], *, chunk: int = 64) -> Iterator[tuple[int, Tensor]]: ...
    def score_rows(
        self, rows: Sequence[Sequence[int]], *, chunk: int = 64
    ) -> Iterator[tuple[int, Tensor]]: ...
    def head(self, hidden: Tensor) -> Tensor: ...
