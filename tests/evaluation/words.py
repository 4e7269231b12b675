"""A tokenizer without a vocabulary file, the same on every machine: pieces of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_TOKEN = re.compile(r" ?[A-Za-z]{1,4}| ?[0-9]{1,2}| ?[^\w\s]|\s|\w")


class WordTokenizer:
    """A chat is `<role>text</role>`."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = (0,)

    def __init__(self, *, has_chat: bool = True) -> None:
        self.has_chat = has_chat
        self._ids: dict[str, int] = {"<eos>": 0}

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [self._ids.setdefault(part, len(self._ids)) for part in _TOKEN.findall(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        names = list(self._ids)
        return "".join(names[token] for token in tokens if token)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages)
        return self.encode(text + "<assistant>")
