"""What a caller may give as a prompt, as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from octavo.engine.requests import Prompt
from octavo.errors import InvalidRequest
from octavo.model.tokenizer import Tokenizer

__all__ = ["is_tokens", "prompt_tokens"]


def is_tokens(prompt: object) -> bool:
    return is_list(prompt) and all(isinstance(t, int) for t in cast("Sequence[object]", prompt))


def is_messages(prompt: object) -> bool:
    return is_list(prompt) and all(isinstance(m, Mapping) for m in cast("Sequence[object]", prompt))


def is_list(prompt: object) -> bool:
    """A sequence of things: text is none, and bytes are text of unknown encoding, not numbers."""
    return isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray)


def prompt_tokens(
    tokenizer: Tokenizer, prompt: Prompt, *, raw: bool, document_raw: bool | None, vocab: int
) -> list[int]:
    """The prompt's tokens; behind a document (`document_raw` not None) those that follow it."""
    if isinstance(prompt, str | Sequence) and not len(prompt):
        raise InvalidRequest("the prompt is empty; give at least one character, token or message")
    if is_tokens(prompt):
        return check_ids(cast("Sequence[int]", prompt), vocab)
    if not isinstance(prompt, str) and not is_messages(prompt):
        raise InvalidRequest(f"a prompt is text, token ids or chat messages, not {describe(prompt)}")
    if document_raw is not None:
        return behind_document(tokenizer, prompt, raw or not tokenizer.has_chat, document_raw)
    if isinstance(prompt, str):
        if raw or not tokenizer.has_chat:
            return tokenizer.encode(prompt)
        return tokenizer.chat([{"role": "user", "content": prompt}])
    if raw:
        raise InvalidRequest(
            "raw=True takes text or token ids, not chat messages; drop raw or give one string"
        )
    return tokenizer.chat(cast(Any, prompt))


def behind_document(tokenizer: Tokenizer, prompt: Prompt, raw: bool, document_raw: bool) -> list[int]:
    if raw != document_raw:
        made, asked = ("raw text", "a chat prompt") if document_raw else ("a chat", "a raw prompt")
        raise InvalidRequest(
            f"the document was made as {made} and cannot be followed by {asked}; make a second document with "
            f"raw={not document_raw} or ask with raw={document_raw}",
            field="document",
        )
    return tokenizer.after_document(cast(Any, prompt), raw=raw)


def check_ids(tokens: Sequence[int], vocab: int) -> list[int]:
    for n, token in enumerate(tokens):
        if not 0 <= token < vocab:
            raise InvalidRequest(
                f"token {n} of the prompt is {token}; the model's ids run from 0 to {vocab - 1}"
            )
    return list(tokens)


def describe(value: object) -> str:
    if is_list(value):
        value = cast("Sequence[object]", value)
        return "a list of " + ", ".join(sorted({type(v).__name__ for v in value}))
    return type(value).__name__
