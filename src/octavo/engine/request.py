"""A request in flight: its sequence, its text so far, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.documents import Document
from octavo.engine.requests import Completion, Delta, FinishReason, TokenLogprob, Usage
from octavo.engine.sampler import Choice
from octavo.engine.sequence import Sequence
from octavo.engine.text import Output
from octavo.model.tokenizer import Tokenizer

__all__ = ["Request", "collect"]


@dataclass(eq=False)
class Request:
    """What the engine keeps per request beyond its tokens and pages."""

    sequence: Sequence
    output: Output
    document: Document | None = None
    queued: bool = False

    @property
    def id(self) -> int:
        return self.sequence.id

    def usage(self) -> Usage:
        s = self.sequence
        return Usage(s.prompt, min(s.cached, s.prompt), s.generated, s.dropped)

    def accept(self, choice: Choice, tokenizer: Tokenizer) -> Delta:
        """Add a sampled token; says what it adds to the text and whether the request ends with it."""
        s, rules = self.sequence, self.sequence.sampling
        s.tokens.append(choice.token)
        ends = (
            choice.token in tokenizer.eos_ids and not rules.ignore_eos
        ) or choice.token in rules.stop_token_ids
        text = "" if ends else self.output.add(choice.token)
        offset = self.output.begun if ends else self.output.start
        finish: FinishReason | None = "stop" if ends or self.output.stopped else None
        full = not rules.context_shift and len(s.tokens) >= s.limit
        if finish is None and (full or s.generated == rules.max_tokens):
            finish = "length"
        if finish and not self.output.stopped:
            text += self.output.flush()
            finish = "stop" if self.output.stopped else finish
        logprobs = told(choice, offset, tokenizer)
        return Delta(self.id, text, (choice.token,), self.usage(), logprobs, finish)

    def fail(self, finish: FinishReason, error: Exception | None = None) -> Delta:
        """The last word on a request that did not end by itself; text held back so far is released."""
        return Delta(self.id, self.output.flush(), (), self.usage(), (), finish, error)


def told(choice: Choice, offset: int, tokenizer: Tokenizer) -> tuple[TokenLogprob, ...]:
    """The log-probability of a token that begins in character `offset` of the answer, if it was asked for."""
    if choice.logprob is None:
        return ()
    top = tuple((token, tokenizer.token_bytes(token), value) for token, value in choice.top)
    spelling = tokenizer.token_bytes(choice.token)
    return (TokenLogprob(choice.token, spelling, choice.logprob, top, offset),)


def collect(deltas: list[Delta]) -> Completion:
    """A finished request from all its deltas, in order."""
    last = deltas[-1]
    assert last.finish is not None
    return Completion(
        last.request,
        "".join(d.text for d in deltas),
        tuple(t for d in deltas for t in d.tokens),
        last.finish,
        last.usage,
        tuple(p for d in deltas for p in d.logprobs),
    )
