"""Tokens become text one at a time, never half a character.

Byte-level BPE and sentencepiece vocabularies both spell bytes, so a token is a byte string and an
incremental UTF-8 decoder does the rest: constant work a token, whatever came before.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Detokenizer", "Spelling"]


def _byte_of_char() -> dict[str, int]:
    """The byte each printable stand-in of GPT-2's byte-level BPE means."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()


def _byte_level(token: str) -> bytes:
    return bytes(_BYTE_OF_CHAR[char] for char in token)


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


class Spelling:
    """The bytes of every token of one vocabulary; special tokens spell nothing.

    Vocabularies of other kinds (WordPiece and the like) are spelled through the tokenizer's own decoder,
    one token at a time.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._added = {n: t.content for n, t in backend.added_tokens_decoder.items() if not t.special}
        self._special = set(backend.all_special_ids)
        self._special |= {n for n, t in backend.added_tokens_decoder.items() if t.special}
        self._spell, self.strips_first = _rule(backend)
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._look_up(token)
        return self._known[token]

    def _look_up(self, token: int) -> bytes:
        if token in self._special:
            return b""
        if token in self._added:
            return str(self._added[token]).encode()
        if self._spell is None:
            return str(self._backend.decode([token], skip_special_tokens=True)).encode()
        text = self._backend.convert_ids_to_tokens(token)
        return b"" if text is None else self._spell(text)


def _rule(backend: Any) -> tuple[Callable[[str], bytes] | None, bool]:
    """How tokens spell bytes, and whether a text's first space belongs to the vocabulary, not to the text."""
    fast = getattr(backend, "backend_tokenizer", None)
    if fast is None or fast.decoder is None:
        return None, False
    decoder = json.loads(fast.decoder.__getstate__())
    parts = decoder.get("decoders", [decoder])
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level, False
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        metaspace = any(p["type"] == "Metaspace" and p.get("prepend_scheme") != "never" for p in parts)
        return _sentencepiece, "Strip" in kinds or metaspace
    return None, False


class Detokenizer:
    """The text of one growing answer. Its leading space is kept: it may continue what came before.

    start   the character in which the newest token begins: parts of one character begin in the same
    """

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._whole = 0
        self.start = 0

    @property
    def begun(self) -> int:
        """Characters so far, an unfinished one included."""
        return self._whole + bool(self._utf8.getstate()[0])

    def add(self, token: int) -> str:
        """The text that `token` completes; bytes of an unfinished character wait for the next one."""
        octets = self._spelling[token]
        text = self._decode(octets[:1])  # goes on with an unfinished character, or breaks it and begins one
        self.start = self.begun - bool(octets)
        return text + self._decode(octets[1:])

    def extend(self, tokens: Iterable[int]) -> str:
        """`add` for several tokens."""
        return "".join(map(self.add, tokens))

    def flush(self) -> str:
        """What still waited: bytes that no token completed come out as U+FFFD."""
        return self._decode(b"", final=True)

    def _decode(self, octets: bytes, final: bool = False) -> str:
        text = self._utf8.decode(octets, final)
        self._whole += len(text)
        return text
