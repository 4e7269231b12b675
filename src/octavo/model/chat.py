"""Chat templates: messages become text in pieces, and a document is cut out of the user's turn.

A template is only ever run on whole messages. Where we must know which part of the text came from whom,
a marker that no text contains goes in with the content and the rendered text is cut at the marker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequest

__all__ = ["JOIN", "ChatTemplate", "Message", "Piece"]

Message = Mapping[str, Any]
Piece = tuple[str, bool]
"""A text, and whether control tokens in it count as such."""

JOIN = "\n\n"
"""Stands between a document and what follows it, and between the parts of a message."""

_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
_BOUNDARY = f"{_OPEN}document{_CLOSE}"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_LEADING = ("system", "developer")


class ChatTemplate:
    """The chat template of one tokenizer."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        special = sorted((t.content for t in backend.added_tokens_decoder.values() if t.special), key=len)
        self._control = re.compile("|".join(map(re.escape, [*reversed(special), _OPEN, _CLOSE])))

    def render(self, messages: Sequence[Message], *, continue_final: bool = False) -> list[Piece]:
        """The conversation's text, up to where the model goes on."""
        held: list[str] = []
        checked = [self._guard(m, held) for m in _checked(messages)]
        return _split(self._apply(checked, continue_final), held)

    def document(self, text: str) -> list[Piece]:
        """What precedes a document in the user's turn, and the document."""
        held: list[str] = []
        before, _ = self._around([{"role": "user", "content": _BOUNDARY}])
        return _split(before + self._hold(text, held), held)

    def after_document(self, messages: Sequence[Message]) -> list[Piece]:
        """What follows a document that opens the first user message."""
        held: list[str] = []
        checked = [self._guard(m, held) for m in _checked(messages)]
        return _split(self._around(_behind_document(checked))[1], held)

    def _around(self, messages: list[dict[str, Any]]) -> tuple[str, str]:
        before, *after = self._apply(messages, False).split(_BOUNDARY)
        if len(after) != 1:
            raise InvalidRequest(
                f"the chat template shows the user's text {len(after)} times, so a document cannot be shared "
                "through it; use the document raw"
            )
        return before, after[0]

    def _apply(self, messages: list[dict[str, Any]], continue_final: bool) -> str:
        try:
            text = self._backend.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=not continue_final,
                continue_final_message=continue_final,
            )
        except Exception as error:  # templates raise what they like
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}") from error
        return str(text)

    def _guard(self, message: dict[str, Any], held: list[str]) -> dict[str, Any]:
        """Every text of a message but its role holds what users wrote."""
        return {
            k: self._hold(v, held) if isinstance(v, str) and k != "role" else v for k, v in message.items()
        }

    def _hold(self, text: str, held: list[str]) -> str:
        """`text` with control tokens (and marker signs) replaced by markers; the originals join `held`."""

        def mark(match: re.Match[str]) -> str:
            held.append(match.group())
            return f"{_OPEN}{len(held) - 1}{_CLOSE}"

        return self._control.sub(mark, text)


def _split(text: str, held: list[str]) -> list[Piece]:
    """The text in pieces: what was held comes back as ordinary text."""
    parts = _MARK.split(text)
    pieces = [(held[int(part)], False) if n % 2 else (part, True) for n, part in enumerate(parts)]
    return [piece for piece in pieces if piece[0]]


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not messages:
        raise InvalidRequest("the conversation is empty; give at least one message")
    return [_message(n, message) for n, message in enumerate(messages)]


def _message(n: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"message {n} is no mapping with a role; write {{'role': ..., 'content': ...}}")
    return {**message, "content": _text(n, message.get("content"))}


def _text(n: int, content: Any) -> str:
    """The text of a message's content, which may come in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"message {n} has content of type {type(content).__name__}; give text")
    return JOIN.join(_part(n, part) for part in content)


def _part(n: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequest(f"message {n} has a part of type {kind!r}; only text parts can be served")
    return str(part["text"])


def _behind_document(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the boundary, then the leading system messages, at the start of the user's turn."""
    lead = next((n for n, m in enumerate(messages) if m["role"] not in _LEADING), len(messages))
    if lead == len(messages) or messages[lead]["role"] != "user":
        raise InvalidRequest("a document opens the user's turn, but the first message is not the user's")
    parts = [_BOUNDARY, *(m["content"] for m in messages[: lead + 1])]
    return [{**messages[lead], "content": JOIN.join(parts)}, *messages[lead + 1 :]]
