"""What goes into the engine and what comes out, as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from octavo.errors import InvalidRequest

__all__ = [
    "KEEP",
    "Completion",
    "Delta",
    "FinishReason",
    "Prompt",
    "Sampling",
    "TokenLogprob",
    "Usage",
    "readable",
]

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages ({"role": ..., "content": ...})."""

KEEP = 64
"""Tokens at a sequence's start that a context shift leaves by default: attention sinks lie there."""

FinishReason = Literal["stop", "length", "abort", "error"]


def whole(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high


def number(value: object, low: float, high: float) -> bool:
    return isinstance(value, Real) and low <= float(value) <= high


def listed(value: object, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and all(holds(v) for v in value)


def is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(whole(k) and number(v, -1e6, 1e6) for k, v in value.items())


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (
        lambda v: v is None or whole(v, 1),
        "a whole number from 1, or None for the whole context",
    ),
    "temperature": (lambda v: number(v, 0, 100), "a number between 0 (greedy) and 100"),
    "top_p": (lambda v: number(v, 0, 1) and v > 0, "a number in (0, 1]; 1 switches it off"),
    "top_k": (lambda v: whole(v, 0), "a whole number, 0 (off) or more"),
    "min_p": (lambda v: number(v, 0, 1), "a number in [0, 1]; 0 switches it off"),
    "seed": (lambda v: v is None or whole(v), "a whole number, or None"),
    "stop": (lambda v: listed(v, lambda s: isinstance(s, str) and s != ""), "non-empty strings"),
    "stop_token_ids": (lambda v: listed(v, whole), "token ids"),
    "presence_penalty": (lambda v: number(v, -2, 2), "a number between -2 and 2"),
    "frequency_penalty": (lambda v: number(v, -2, 2), "a number between -2 and 2"),
    "logit_bias": (is_bias, "a mapping of token ids to finite numbers"),
    "context_shift": (lambda v: isinstance(v, bool), "True or False"),
    "keep": (lambda v: whole(v, 0), "a whole number of tokens, 0 or more"),
    "ignore_eos": (lambda v: isinstance(v, bool), "True or False"),
    "logprobs": (lambda v: v is None or whole(v, 0, 20), "None or a whole number between 0 and 20"),
}
"""What each setting must be; checked at birth, so that no step meets a value it cannot use."""


@dataclass(frozen=True)
class Sampling:
    """How one request's tokens are chosen. The default is greedy.

    temperature 0 takes the most likely token; top_k 0, top_p 1 and min_p 0 switch those filters off.
    `logprobs` asks for that many alternatives beside each chosen token (0: only the chosen one's).
    `context_shift` makes room, where the context is full, by dropping the oldest tokens behind the first
    `keep` (and a document), those of too long a prompt too; it needs Dual Chunk Attention, which leaves
    stored pages valid.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    context_shift: bool = False
    keep: int = KEEP

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name, (holds, rule) in RULES.items():
            if not holds(getattr(self, name)):
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; it must be {rule}", field=name)
        for name, value in plain_numbers(self).items():
            object.__setattr__(self, name, value)
        if self.keep != KEEP and not self.context_shift:
            message = f"keep is {self.keep}, but without context_shift nothing is dropped"
            raise InvalidRequest(message, field="keep")


def plain_numbers(rules: Sampling) -> dict[str, Any]:
    """The settings as Python's own numbers, whatever kind they came in."""
    reals = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
    wholes = ("max_tokens", "top_k", "seed", "keep", "logprobs")
    made: dict[str, Any] = {name: float(getattr(rules, name)) for name in reals}
    made |= {name: int(value) for name in wholes if (value := getattr(rules, name)) is not None}
    made["stop_token_ids"] = tuple(int(token) for token in rules.stop_token_ids)
    made["logit_bias"] = {int(token): float(value) for token, value in rules.logit_bias.items()}
    return made


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its log-probability in nats, and the alternatives asked for, most likely first.

    spelling  its bytes in UTF-8, perhaps only a part of a character; control tokens have none
    top       alternatives: token, spelling, log-probability
    offset    characters of the answer before the one in which it begins
    """

    token: int
    spelling: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()
    offset: int = 0

    @property
    def text(self) -> str:
        """Its text; the bytes of a part of a character are written \\xNN."""
        return readable(self.spelling)


def readable(spelling: bytes) -> str:
    """A token's bytes as text; what is no whole character is written \\xNN, as OpenAI does."""
    return spelling.decode(errors="backslashreplace")


@dataclass(frozen=True)
class Usage:
    """Tokens of one request. `cached_tokens` of the prompt were read from shared pages, not computed;
    `context_shifted` were dropped to make room."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    context_shifted: int = 0


@dataclass(frozen=True)
class Delta:
    """What one step added to one request. `text` may lag behind `tokens` while a character is incomplete."""

    request: int
    text: str
    tokens: tuple[int, ...]
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Completion:
    """One finished request."""

    request: int
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
