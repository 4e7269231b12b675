"""Log-probabilities in the two shapes OpenAI has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.engine.requests import TokenLogprob, readable

__all__ = ["for_chat", "for_completion"]

FLOOR = -9999.0
"""Stands for minus infinity, which JSON lacks; OpenAI uses the same number."""


def for_chat(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """{"content": one entry a token, "refusal": null}. In nats."""
    content = [
        entry(token.spelling, token.logprob)
        | {"top_logprobs": [entry(spelling, logprob) for _, spelling, logprob in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def entry(spelling: bytes, logprob: float) -> dict[str, Any]:
    """`bytes` is null for a control token, which spells nothing."""
    return {"token": readable(spelling), "logprob": max(logprob, FLOOR), "bytes": list(spelling) or None}


def for_completion(tokens: Sequence[TokenLogprob], alternatives: int) -> dict[str, Any]:
    """Four parallel lists."""
    return {
        "tokens": [name(token.spelling) for token in tokens],
        "token_logprobs": [max(token.logprob, FLOOR) for token in tokens],
        "top_logprobs": [table(token) for token in tokens] if alternatives else None,
        "text_offset": [token.offset for token in tokens],
    }


def name(spelling: bytes) -> str:
    """A token where nothing but its text is told: bytes that are no whole characters are marked as such."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return f"bytes:{readable(spelling)}"


def table(token: TokenLogprob) -> dict[str, float]:
    """text → log-probability of the chosen token and the alternatives; of two equal texts the likelier."""
    found: dict[str, float] = {}
    for _, spelling, logprob in [*token.top, (token.token, token.spelling, token.logprob)]:
        text = name(spelling)
        found[text] = max(logprob, found.get(text, FLOOR), FLOOR)
    return found
