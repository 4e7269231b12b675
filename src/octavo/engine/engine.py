"""Engine: the public face. Prompts and documents in, text out."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import cast

import torch

from octavo.attention.dispatch import choose_backend
from octavo.engine.core import Core
from octavo.engine.documents import Document
from octavo.engine.lock import Lock
from octavo.engine.memory import Memory
from octavo.engine.prompts import check_ids, is_list, is_tokens, prompt_tokens
from octavo.engine.request import Request, collect
from octavo.engine.requests import Completion, Delta, Prompt, Sampling
from octavo.engine.scoring import score
from octavo.engine.sequence import Sequence as Tokens
from octavo.engine.stats import Stats
from octavo.engine.stream import Stream
from octavo.engine.text import Output
from octavo.errors import (
    DocumentInUse,
    EngineStopped,
    InvalidRequest,
    PromptTooLong,
    UnknownDocument,
    unknown,
)
from octavo.model.digest import weights_digest
from octavo.model.load import LoadedModel, load_model
from octavo.model.rope import fix_rope
from octavo.recipe import Recipe

__all__ = ["Engine"]


class Engine:
    """Serves one model from one pool of pages.

    model          hub id, folder, .gguf file, built-in name, or a LoadedModel
    recipe         how keys and values are kept
    device, dtype  "auto" takes the GPU if there is one, and the dtype the weights come in
    memory         bytes of the pool, or "4GB"; None takes a share of what is free (`stats().pool` explains)
    context        most tokens of a sequence; at most the trained length, which is the default
    chunk          prompt tokens run per step beside the decoding sequences
    max_sequences  sequences that run at once;  max_waiting: requests queued before Overloaded is raised
    strict         refuse to serve on a GPU without the GPU kernels
    compile        put the dense part of decoding through torch.compile: a minute or more, then faster (GPU)
    all_quantised  evaluation: read even the newest tokens as if packed
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        recipe: Recipe | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        memory: int | str | None = None,
        context: int | None = None,
        chunk: int = 512,
        max_sequences: int = 64,
        max_waiting: int = 1024,
        strict: bool = False,
        compile: bool = False,
        all_quantised: bool = False,
    ):
        for name, value in (("chunk", chunk), ("max_sequences", max_sequences), ("max_waiting", max_waiting)):
            if value < 1:
                raise InvalidRequest(f"{name} is {value}; it must be at least 1")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded = model if isinstance(model, LoadedModel) else load_model(model, device=device, dtype=dtype)
        place = next(loaded.module.parameters()).device
        recipe = recipe or Recipe()
        check_recipe(recipe, loaded)
        backend = choose_backend(place, loaded.shape, recipe, strict=strict)
        pool = Memory.build(
            loaded.shape, recipe, backend, place, loaded.identity, memory,
            sequences=max_sequences, chunk=chunk, everywhere=all_quantised,
        )  # fmt: skip
        self.name, self.tokenizer, self.shape, self.recipe = (
            loaded.name,
            loaded.tokenizer,
            loaded.shape,
            recipe,
        )
        self.context = usable_context(loaded.shape.context, context)
        fix_rope(loaded.module, self.context)
        self._core = Core(
            loaded, recipe, backend, pool,
            chunk=chunk, max_sequences=max_sequences, max_waiting=max_waiting, all_quantised=all_quantised,
            compile=compile,
        )  # fmt: skip
        self._lock = Lock()
        self._unread: list[Delta] = []
        self._inboxes: dict[int, deque[Delta]] = {}
        self._closed: EngineStopped | None = None

    # documents

    @property
    def documents(self) -> Mapping[str, Document]:
        """The documents held, by name."""
        return MappingProxyType({n: d for n, d in list(self._core.documents.items()) if d.ready})

    def document(self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False) -> Document:
        """Prefill `text` once and hold it under `name`; requests are forked from it without computing it
        again."""
        document = self.begin_document(text, name=name, raw=raw)
        try:
            while not document.ready:
                if document.error is not None:
                    raise document.error
                self.advance()
        except KeyboardInterrupt:
            document.release()
            raise
        return document

    def begin_document(
        self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False
    ) -> Document:
        """Queue a document; it is `ready` after some steps, or its `error` says why not."""
        raw = raw or not isinstance(text, str) or not self.tokenizer.has_chat
        if not isinstance(text, str) and not is_tokens(text):
            raise InvalidRequest("a document is text or token ids")
        if not len(text):
            raise InvalidRequest("the document is empty; give at least one character")
        if isinstance(text, str):
            tokens = self.tokenizer.document(text, raw=raw)
        else:
            tokens = check_ids(text, self.shape.vocab)
        with self._lock:
            self._check_open()
            self._check_length(len(tokens), "document")
            taken = self._core.documents
            name = name or next(
                f"document-{n}" for n in range(1, len(taken) + 2) if f"document-{n}" not in taken
            )
            if name in taken:
                raise InvalidRequest(
                    f"a document named {name!r} exists; release it first or choose another name"
                )
            sequence = self._sequence(tokens, [], Sampling(), None)
            sequence.pinned = True
            document = Document(name, raw, sequence, self._release, self._core.memory.bytes_of)
            self._core.scheduler.add(sequence)
            taken[name] = document
            return document

    def _release(self, document: Document) -> None:
        with self._lock:
            if self._core.documents.get(document.name) is not document:
                raise UnknownDocument(f"document {document.name!r} was released before")
            if document.users:
                raise DocumentInUse(
                    f"document {document.name!r} is read by {document.users} requests; "
                    "wait for them or abort them"
                )
            del self._core.documents[document.name]
            if document.ready:
                self._core.memory.ledger.release(document.sequence.holding)
            else:
                self._core.scheduler.remove(document.sequence)
                document.error = UnknownDocument(f"document {document.name!r} was released before it was ready")

    # requests

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> int:
        """Queue one request and return its id; `step` runs it. Wrong input is refused here."""
        with self._lock:
            self._check_open()
            held = self._document(document)
            sampling = sampling or Sampling()
            if sampling.seed is None:
                sampling = replace(sampling, seed=secrets.randbits(64))
            for token in (*sampling.logit_bias, *sampling.stop_token_ids):
                if not 0 <= token < self.shape.vocab:
                    raise InvalidRequest(
                        f"token {token} does not exist; the model's ids run to {self.shape.vocab - 1}"
                    )
            own = prompt_tokens(
                self.tokenizer,
                prompt,
                raw=raw,
                document_raw=held.raw if held else None,
                vocab=self.shape.vocab,
            )
            base = held.sequence if held else None
            tokens = [*(base.tokens if base else ()), *own]
            if not own:
                raise InvalidRequest("the prompt holds no tokens; give at least one character or message")
            self._check_length(len(tokens) + 1, "prompt and one new token")
            sequence = self._sequence(tokens, [], sampling, base)
            request = Request(sequence, Output(self.tokenizer, sampling.stop), held)
            self._core.start(request)
            return request.id

    def step(self) -> list[Delta]:
        """Run one batch; returns the deltas of requests that no `generate` or `stream` is waiting for."""
        self.advance()
        return self.unread()

    def unread(self) -> list[Delta]:
        """Deltas that no `generate` or `stream` is waiting for and `step` has not returned yet."""
        with self._lock:
            deltas, self._unread = self._unread, []
            return deltas

    def abort(self, request: int) -> bool:
        """Cancel a request; its pages are free at once. False if it is not running or waiting."""
        with self._lock:
            delta = self._core.abort(request)
            if delta is not None:
                self._deliver([delta])
            return delta is not None

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> Stream:
        """Deltas of one request as they come; closing the stream aborts it. Input is checked at once."""
        with self._lock:
            id = self.submit(prompt, sampling, document=document, raw=raw)
            self._inboxes[id] = deque()
            return Stream(id, self._inboxes[id], self.advance, self._abandon)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> list[Completion]:
        """Complete a batch of prompts (or one); the result is in their order. A failed request raises its
        error."""
        batch = as_batch(prompts)
        rules = list(sampling) if isinstance(sampling, Sequence) else [sampling] * len(batch)
        if len(rules) != len(batch):
            raise InvalidRequest(
                f"{len(batch)} prompts came with {len(rules)} samplings; give one, or one each"
            )
        readers: list[Stream] = []
        try:
            for prompt, rule in zip(batch, rules, strict=True):
                while len(self._core.scheduler.waiting) >= self._core.scheduler.max_waiting:
                    self.advance()
                readers.append(self.stream(prompt, rule, document=document, raw=raw))
            return [collect(list(reader)) for reader in readers]
        finally:
            for reader in readers:
                reader.close()

    def score(
        self, tokens: Sequence[int], *, chunk: int = 64, wanted: int = 0
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Teacher forcing: (start, final hidden states [n, hidden]) chunk by chunk, on private pages.

        Tokens of one chunk see each other exactly; pages are packed as they are when serving. Rows before
        `wanted` need not come: then pages are shared, and what the pool already has of them is not computed
        again.
        """
        self._check_open()
        if not len(tokens):
            raise InvalidRequest("there are no tokens to score")
        if chunk < 1:
            raise InvalidRequest(f"chunk is {chunk}; it must be at least 1")
        self._check_length(len(tokens), "text")
        if not 0 <= wanted < len(tokens):
            raise InvalidRequest(
                f"wanted is {wanted}; the rows of {len(tokens)} tokens are 0 to {len(tokens) - 1}"
            )
        return score(self._core, check_ids(tokens, self.shape.vocab), chunk, next(self._core.ids), wanted)

    @contextmanager
    def watched(self, see: Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]) -> Iterator[None]:
        """While it lasts, `score` shows layer, q [T, H, D], k and v [T, G, D] after RoPE to `see`."""
        attention = self._core.runner.attention
        attention.watch = see
        try:
            yield
        finally:
            attention.watch = None

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final hidden states [n, hidden] → logits [n, vocab] float32."""
        return self._core.runner.head(hidden)

    def stats(self) -> Stats:
        """Pages by kind, tokens, hits, backend and its reason."""
        with self._lock:
            return self._core.stats()

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._core.idle

    def close(self) -> None:
        """End all requests with EngineStopped; further calls are refused."""
        with self._lock:
            if self._closed is None:
                self._closed = EngineStopped("the engine was closed")
                self._deliver(self._core.stop_all(self._closed))

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # inside

    def _sequence(
        self, tokens: list[int], keys: list[bytes], sampling: Sampling, base: Tokens | None
    ) -> Tokens:
        most = len(tokens) + sampling.max_tokens if sampling.max_tokens is not None else self.context
        limit = min(most, self.context, self._core.memory.capacity)
        return Tokens(
            next(self._core.ids),
            tokens,
            len(tokens),
            limit,
            sampling,
            self._core.memory.ledger.new(),
            base,
            keys=keys,
        )

    def _document(self, document: Document | str | None) -> Document | None:
        if document is None:
            return None
        name = document if isinstance(document, str) else document.name
        held = self.documents.get(name)
        if held is None or (isinstance(document, Document) and held is not document):
            near = (
                str(unknown("document", name, self.documents))
                if self.documents
                else f"no document {name!r} is held"
            )
            raise UnknownDocument(near)
        return held

    def _check_length(self, tokens: int, what: str) -> None:
        capacity = self._core.memory.capacity
        if tokens > self.context:
            raise PromptTooLong(
                f"{what}: {tokens} tokens, but a sequence holds at most {self.context}; shorten the text"
                + (
                    " or raise the context"
                    if self.context < self.shape.context
                    else " or use a model trained longer"
                )
            )
        if tokens > capacity:
            raise PromptTooLong(
                f"{what}: {tokens} tokens, but the whole pool holds {capacity}; raise --memory"
            )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _abandon(self, request: int) -> None:
        def abandon() -> None:
            del self._inboxes[request]
            self._core.abort(request)

        self._lock.alone(abandon)

    def advance(self) -> None:
        """Run one batch; its deltas wait for `unread` or for their streams."""
        with self._lock:
            self._check_open()
            try:
                self._deliver(self._core.step())
            except Exception as error:
                self._closed = EngineStopped(f"the engine stopped after an internal error: {error!r}")
                self._deliver(self._core.stop_all(self._closed))
                raise self._closed from error

    def _deliver(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._inboxes.get(delta.request, self._unread).append(delta)


def check_recipe(recipe: Recipe, loaded: LoadedModel) -> None:
    """Raise InvalidRequest unless the recipe fits the model, and was made for its weights if it says so."""
    recipe.check(loaded.shape, loaded.name, weights_digest(loaded.module) if recipe.model else "")


def usable_context(trained: int, asked: int | None) -> int:
    if asked is None:
        return trained
    if not 2 <= asked <= trained:
        raise InvalidRequest(
            f"context is {asked}; the model was trained for {trained} tokens, so take 2 to {trained}"
        )
    return asked


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, from one or several."""
    if not is_list(prompts) or not len(prompts):
        return [cast(Prompt, prompts)]
    single = all(isinstance(p, int | Mapping) for p in prompts)
    return [cast(Prompt, prompts)] if single else list(cast("Sequence[Prompt]", prompts))
