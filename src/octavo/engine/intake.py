"""What callers give, checked and turned into sequences: wrong input is refused here, before anything is
queued."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

from octavo.engine.core import Core
from octavo.engine.documents import Document
from octavo.engine.prompts import check_ids, is_list, is_tokens, prompt_tokens
from octavo.engine.request import Request
from octavo.engine.requests import Prompt, Sampling
from octavo.engine.sequence import Sequence as Tokens
from octavo.engine.shift import check_shift
from octavo.engine.text import Output
from octavo.errors import InvalidRequest, PromptTooLong
from octavo.pages.prefix import Key, page_keys

__all__ = ["Intake", "as_batch", "usable_context"]


class Intake:
    """Makes requests and documents for one engine."""

    def __init__(self, core: Core, context: int):
        self.core = core
        self.context = context
        self.tokenizer = core.loaded.tokenizer
        self.shape = core.loaded.shape

    def requests(
        self, prompt: Prompt, samplings: Sequence[Sampling], held: Document | None, *, raw: bool
    ) -> list[Request]:
        """Requests on one prompt, which is tokenised once, behind the document `held` or on its own; those
        without a seed get one."""
        for sampling in samplings:
            self.check_tokens(sampling.logit_bias, "logit_bias")
            self.check_tokens(sampling.stop_token_ids, "stop_token_ids")
        base, document_raw = (held.sequence, held.raw) if held else (None, None)
        before = base.tokens if base else []
        vocab = self.shape.vocab

        def check(own: int, about: str = "at least ") -> None:
            if not all(sampling.context_shift for sampling in samplings):
                self.check_length(len(before) + own + 1, "prompt and one new token", about)

        with blaming("prompt"):
            tokenizer = self.tokenizer.within(check)
            own = prompt_tokens(tokenizer, prompt, raw=raw, document_raw=document_raw, vocab=vocab)
            if not own:
                raise InvalidRequest("the prompt holds no tokens; give at least one character or message")
            check(len(own), "")
        tokens = [*before, *own]
        keys = self._keys(tokens, base)
        return [
            Request(self._sequence(list(tokens), keys, rules, base), Output(self.tokenizer, rules.stop), held)
            for rules in map(seeded, samplings)
        ]

    def document(self, text: str | Sequence[int], *, raw: bool) -> tuple[Tokens, bool]:
        """A document's sequence, and whether it is raw: token ids and models without a chat template are."""
        raw = raw or not isinstance(text, str) or not self.tokenizer.has_chat
        with blaming("text"):
            if not isinstance(text, str) and not is_tokens(text):
                raise InvalidRequest("a document is text or token ids")
            if not len(text):
                raise InvalidRequest("the document is empty; give at least one character")
            if isinstance(text, str):
                check = partial(self.check_length, what="document", about="at least ")
                tokens = self.tokenizer.within(check).document(text, raw=raw)
            else:
                tokens = check_ids(text, self.shape.vocab)
            self.check_length(len(tokens), "document")
        sequence = self._sequence(tokens, self._keys(tokens), Sampling(), None)
        sequence.pinned = True
        return sequence, raw

    def scored(self, tokens: Sequence[int], chunk: int, wanted: int) -> list[int]:
        """Tokens to score, checked."""
        if not len(tokens):
            raise InvalidRequest("there are no tokens to score")
        if chunk < 1:
            raise InvalidRequest(f"chunk is {chunk}; it must be at least 1")
        self.check_length(len(tokens), "text")
        if not 0 <= wanted < len(tokens):
            raise InvalidRequest(
                f"wanted is {wanted}; the rows of {len(tokens)} tokens are 0 to {len(tokens) - 1}"
            )
        return check_ids(tokens, self.shape.vocab)

    def check_tokens(self, tokens: Iterable[int], field: str) -> None:
        """Raise InvalidRequest for a token that the model does not have."""
        last = self.shape.vocab - 1
        for token in tokens:
            if not 0 <= token <= last:
                raise InvalidRequest(
                    f"token {token} does not exist; the model's ids run to {last}", field=field
                )

    def check_length(self, tokens: int, what: str, about: str = "") -> None:
        """Raise PromptTooLong for what can never fit the context or the pool."""
        capacity = self.core.memory.capacity
        if tokens > self.context < capacity:
            beyond = "" if self.context < self.shape.context else " beyond what was trained (see dca)"
            raise PromptTooLong(
                f"{what}: {about}{tokens} tokens, but a sequence holds at most {self.context}; "
                f"shorten the text or raise the context{beyond}"
            )
        if tokens > capacity:
            raise PromptTooLong(
                f"{what}: {about}{tokens} tokens, but the whole pool holds {capacity}; raise --memory"
            )

    def _keys(self, tokens: list[int], base: Tokens | None = None) -> list[Key]:
        """Of all complete pages, made here so that no step waits for it."""
        return page_keys(self.core.memory.ledger.root, tokens, base.holding.keys if base else ())

    def _sequence(
        self, tokens: list[int], keys: list[Key], sampling: Sampling, base: Tokens | None
    ) -> Tokens:
        limit, keep = min(self.context, self.core.memory.capacity), 0
        if sampling.context_shift:
            keep = max(sampling.keep, len(base.tokens) if base else 0)
            check_shift(self.core.dca, self.shape, keep, limit)
            if sampling.max_tokens is None:
                message = "with context_shift an answer has no other end: give max_tokens"
                raise InvalidRequest(message, field="max_tokens")
        elif sampling.max_tokens is not None:
            limit = min(limit, len(tokens) + sampling.max_tokens)
        holding = self.core.memory.ledger.new()
        sequence = Tokens(next(self.core.ids), tokens, len(tokens), limit, sampling, holding, base)
        sequence.keep, sequence.keys = keep, keys
        return sequence


def seeded(sampling: Sampling) -> Sampling:
    """The same with a seed."""
    return sampling if sampling.seed is not None else replace(sampling, seed=secrets.randbits(64))


@contextmanager
def blaming(field: str) -> Iterator[None]:
    """What is refused inside, and names no field, names `field`."""
    try:
        yield
    except InvalidRequest as error:
        error.field = error.field or field
        raise


def usable_context(trained: int, asked: int | None, capacity: int | None) -> int:
    """The context asked for, or the trained length; where that does not bound it the pool does."""
    most = trained if capacity is None else capacity
    if asked is None:
        return most
    if not 2 <= asked <= most:
        bound = (
            f"the pool holds {capacity} tokens, so take 2 to {capacity}, or raise --memory"
            if capacity is not None
            else f"the model was trained for {trained} tokens; take 2 to {trained}, or let dca be auto or on"
        )
        raise InvalidRequest(f"context is {asked}; {bound}")
    return asked


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, from one or several."""
    if not is_list(prompts) or not len(prompts):
        return [cast(Prompt, prompts)]
    single = all(isinstance(p, int | Mapping) for p in prompts)
    return [cast(Prompt, prompts)] if single else list(cast("Sequence[Prompt]", prompts))
