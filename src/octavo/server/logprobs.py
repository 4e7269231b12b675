"""Log-probabilities in the two shapes OpenAI has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.engine.requests import TokenLogprob

__all__ = ["for_chat", "for_completion"]

FLOOR = -9999.0
"""Stands for minus infinity, which JSON lacks; OpenAI uses the same number."""


def for_chat(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """{"content": one entry a token, "refusal": null}. In nats."""
    content = [
        entry(token.text, token.logprob) | {"top_logprobs": [entry(text, lp) for _, text, lp in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def entry(text: str, logprob: float) -> dict[str, Any]:
    """`bytes` is null where the token is a part of a character, whose bytes its text no longer shows."""
    octets = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": max(logprob, FLOOR), "bytes": octets}


def for_completion(tokens: Sequence[TokenLogprob], alternatives: int, offset: int) -> dict[str, Any]:
    """Four parallel lists. `offset`: characters of the choice's text before the first of `tokens`."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [max(token.logprob, FLOOR) for token in tokens],
        "top_logprobs": [table(token) for token in tokens] if alternatives else None,
        "text_offset": offsets,
    }


def table(token: TokenLogprob) -> dict[str, float]:
    """text → log-probability of the chosen token and the alternatives; of two equal texts the likelier."""
    found: dict[str, float] = {}
    for text, logprob in [*((text, lp) for _, text, lp in token.top), (token.text, token.logprob)]:
        found[text] = max(logprob, found.get(text, FLOOR), FLOOR)
    return found
