"""What goes into the engine and what comes out, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.errors import InvalidRequest

__all__ = ["Completion", "Delta", "FinishReason", "Prompt", "Sampling", "TokenLogprob", "Usage"]

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages ({"role": ..., "content": ...})."""

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Sampling:
    """How one request's tokens are chosen. The default is greedy.

    temperature 0 takes the most likely token; top_k 0, top_p 1 and min_p 0 switch those filters off.
    `logprobs` asks for that many alternatives beside each chosen token (0: only the chosen one's).
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

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, rule: str) -> None:
            if not ok:
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; it must be {rule}")

        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        check("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1, or None for the whole context")
        check("temperature", 0 <= self.temperature <= 100, "between 0 (greedy) and 100")
        check("top_p", 0 < self.top_p <= 1, "in (0, 1]; 1 switches it off")
        check("top_k", self.top_k >= 0, "0 (off) or more")
        check("min_p", 0 <= self.min_p <= 1, "in [0, 1]; 0 switches it off")
        check("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2")
        check("frequency_penalty", -2 <= self.frequency_penalty <= 2, "between -2 and 2")
        check("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "None or between 0 and 20")
        check("stop", all(self.stop), "non-empty strings")


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its text, its log-probability in nats, and the alternatives asked for, most likely first."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of one request. `cached_tokens` of the prompt were read from shared pages, not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


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
