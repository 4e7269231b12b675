"""A text cut into windows of one context length."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import InvalidRequest
from octavo.evaluation import files
from octavo.evaluation.protocols import TextTokenizer
from octavo.formats.base import PAGE

__all__ = ["Text", "Windows", "cut", "other_chunk", "read_text"]


@dataclass(frozen=True)
class Text:
    """A text as tokens. `tokens` are without BOS; `prefix` is what the model wants before every window."""

    name: str
    sha256: str
    tokens: tuple[int, ...]
    prefix: tuple[int, ...]

    @property
    def tokens_sha256(self) -> str:
        """What the tokenizer made of the text: two tokenizers that agree on it are the same here."""
        return hashlib.sha256(repr((self.prefix, self.tokens)).encode()).hexdigest()


@dataclass(frozen=True)
class Windows:
    """Windows [n, ctx] of token ids, each starting as the model wants."""

    text: Text
    ctx: int
    rows: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """Tokens in all windows, BOS included."""
        return self.ctx * len(self.rows)


def read_text(path: Path, tokenizer: TextTokenizer) -> Text:
    """A UTF-8 file as tokens; its hash is that of the text, so a byte order mark changes nothing.

    Raises InvalidFile.
    """
    text = files.read_text(path)
    tokens = tuple(tokenizer.encode(text, special=False))
    prefix = tuple(tokenizer.encode("", special=True))
    return Text(path.name, hashlib.sha256(text.encode()).hexdigest(), tokens, prefix)


def cut(text: Text, ctx: int, *, tokens: int | None = None) -> Windows:
    """The text's windows of `ctx` tokens, at most `tokens` in all; an incomplete last one is left out."""
    if not text.tokens:
        raise InvalidRequest(f"{text.name} is empty; give a text to score")
    body = ctx - len(text.prefix)
    if body < 2:
        raise InvalidRequest(f"ctx is {ctx}; a window needs at least {2 + len(text.prefix)} tokens")
    count = len(text.tokens) // body
    if tokens is not None:
        count = min(count, max(1, tokens // ctx))
    if count == 0:
        raise InvalidRequest(
            f"{text.name} has {len(text.tokens):,} tokens; one window takes {body:,}: "
            "give a longer text or a smaller --ctx"
        )
    return Windows(text, ctx, _rows(text, body, count))


def _rows(text: Text, body: int, count: int) -> tuple[tuple[int, ...], ...]:
    parts: list[Sequence[int]] = [text.tokens[n * body : (n + 1) * body] for n in range(count)]
    return tuple((*text.prefix, *part) for part in parts)


def other_chunk(ctx: int, chunk: int, wanted: int) -> int:
    """A chunk length that cuts windows of `ctx` tokens elsewhere than `chunk` does: the one wanted, unless
    `chunk` holds a whole window, where a larger one would cut nothing either."""
    return wanted if chunk < ctx else max(PAGE, ctx // 2 // PAGE * PAGE)
