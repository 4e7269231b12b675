"""Engine: the public face. Prompts and documents in, text out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from octavo.attention.dispatch import choose_backend
from octavo.engine.core import Core
from octavo.engine.documents import Document
from octavo.engine.intake import Intake, as_batch, usable_context
from octavo.engine.lock import Lock
from octavo.engine.look import take_stats
from octavo.engine.memory import Memory
from octavo.engine.request import Request, collect
from octavo.engine.requests import Completion, Delta, Prompt, Sampling
from octavo.engine.scoring import Scoring
from octavo.engine.shelf import Shelf
from octavo.engine.stats import Stats
from octavo.engine.stream import Stream
from octavo.errors import EngineStopped, InvalidRequest, OctavoError
from octavo.model.digest import weights_digest
from octavo.model.load import LoadedModel, take_model
from octavo.model.rope import fix_rope
from octavo.recipe import Recipe
from octavo.recipe.dca import resolve_dca

__all__ = ["Engine"]


class Engine(Scoring):
    """Serves one model from one pool of pages.

    model          hub id, folder, .gguf file, built-in name, or a LoadedModel
    recipe         how keys and values are kept
    device, dtype  "auto" takes the GPU if there is one, and the dtype the weights come in
    memory         bytes of the pool, or "4GB"; None takes a share of what is free (`stats().pool` explains)
    context        most tokens of a sequence: the trained length, or with Dual Chunk Attention (recipe.dca)
                   what the pool holds
    chunk          most prompt tokens of a step, beside decoding sequences a quarter but at least 512; None
                   takes 8192 with the GPU kernels, fewer in a small pool, and else 512 (see `stats().chunk`)
    max_sequences  sequences that run at once;  max_waiting: requests queued before Overloaded is raised
    strict         refuse to serve without the GPU kernels
    compile        GPU: put the dense part of decoding through torch.compile; a minute, then faster
    all_quantised  evaluation: read even the newest tokens as if packed
    untrained      evaluation: let the context exceed the trained length without Dual Chunk Attention
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
        chunk: int | None = None,
        max_sequences: int = 64,
        max_waiting: int = 1024,
        strict: bool = False,
        compile: bool = False,
        all_quantised: bool = False,
        untrained: bool = False,
    ):
        sizes = {"max_sequences": max_sequences, "max_waiting": max_waiting}
        given = {name: n for name, n in {"chunk": chunk, "context": context}.items() if n is not None}
        for name, value in {**sizes, **given}.items():
            if type(value) is not int or value < 1:
                raise InvalidRequest(f"{name} is {value!r}; it must be a whole number, at least 1")
        loaded = take_model(model, device=device, dtype=dtype)
        place = next(loaded.module.parameters()).device
        recipe = recipe or Recipe()
        check_recipe(recipe, loaded)
        backend = choose_backend(place, loaded.shape, recipe, strict=strict)
        if compile and not backend.graphs:
            raise InvalidRequest(f"compile is for decoding on a GPU; here it is {backend.reason}")
        dca = resolve_dca(recipe, loaded.shape.context, context)
        pool = Memory.build(
            loaded.shape, recipe, backend, place, f"{loaded.identity} {dca.identity if dca else ''}", memory,
            sequences=max_sequences, chunk=chunk, everywhere=all_quantised,
        )  # fmt: skip
        self.name, self.tokenizer = loaded.name, loaded.tokenizer
        self.shape, self.recipe = loaded.shape, recipe
        self.dca, self.max_waiting = dca, max_waiting
        beyond = dca is not None or (untrained and context is not None)
        self.context = usable_context(loaded.shape.context, context, pool.capacity if beyond else None)
        fix_rope(loaded.module, min(self.context, loaded.shape.context))
        self._core = Core(
            loaded, recipe, backend, pool,
            max_sequences=max_sequences, max_waiting=max_waiting, all_quantised=all_quantised,
            compile=compile, context=self.context, dca=dca,
        )  # fmt: skip
        self._intake = Intake(self._core, self.context)
        self._shelf = Shelf(self._core)
        self._lock = Lock()
        self._unread: list[Delta] = []
        self._inboxes: dict[int, deque[Delta]] = {}
        self._closed: EngineStopped | None = None

    # documents

    @property
    def documents(self) -> Mapping[str, Document]:
        """The documents held, by name."""
        return self._shelf.held

    def document(self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False) -> Document:
        """Prefill `text` once and hold it under `name`; requests are forked from it."""
        document = self.begin_document(text, name=name, raw=raw)
        try:
            while not document.ready:
                if document.error is not None:
                    raise document.error
                self.advance()
        except KeyboardInterrupt:
            with suppress(OctavoError):  # a step that was interrupted has closed the engine
                document.release()
            raise
        return document

    def begin_document(
        self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False
    ) -> Document:
        """Queue a document; it is `ready` after some steps, or its `error` says why not."""
        return self.begin(self.prepare_document(text, name=name, raw=raw))

    def prepare_document(
        self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False
    ) -> Document:
        """A document checked and tokenised, for `begin` to queue; no step waits for that."""
        self._check_open()
        sequence, raw = self._intake.document(text, raw=raw)
        return self._shelf.make(sequence, raw, name, self._release)

    def begin(self, document: Document) -> Document:
        """Queue a prepared document; without a name it gets one."""
        with self._lock:
            self._check_open()
            self._core.check(document.sequence)
            self._shelf.begin(document)
            return document

    def _release(self, document: Document) -> None:
        with self._lock:
            self._shelf.release(document)

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
        return self.start(self.prepare(prompt, sampling, document=document, raw=raw))

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> Request:
        """A request checked and tokenised, for `start` to queue; no step waits for that."""
        return self.prepare_samples(prompt, [sampling], document=document, raw=raw)[0]

    def prepare_samples(
        self,
        prompt: Prompt,
        samplings: Sequence[Sampling | None],
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> list[Request]:
        """`prepare` for several samples of one prompt, which is tokenised once."""
        self._check_open()
        for sampling in samplings:
            if not isinstance(sampling, Sampling | None):
                raise InvalidRequest(f"sampling is a {type(sampling).__name__}; it must be a Sampling")
        held = self._shelf.find(document)
        return self._intake.requests(prompt, [s or Sampling() for s in samplings], held, raw=raw)

    def start(self, request: Request) -> int:
        """Queue a prepared request and return its id."""
        with self._lock:
            self._check_open()
            self._core.check(request.sequence)
            self._shelf.check(request.document)
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
        request = self.prepare(prompt, sampling, document=document, raw=raw)
        with self._lock:
            id = self.start(request)
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
        """Complete a batch of prompts (or one), in their order. A failed request raises its error."""
        batch = as_batch(prompts)
        rules = list(sampling) if isinstance(sampling, Sequence) else [sampling] * len(batch)
        if len(rules) != len(batch):
            raise InvalidRequest(f"{len(batch)} prompts but {len(rules)} samplings; give one, or one each")
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

    def stats(self) -> Stats:
        """Pages by kind, tokens, hits, backend and its reason."""
        with self._lock:
            return take_stats(self._core)

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._core.idle

    def close(self, reason: EngineStopped | None = None) -> None:
        """End all requests with EngineStopped; further calls are refused."""
        with self._lock:
            if self._closed is None:
                self._closed = reason or EngineStopped("the engine was closed")
                self._deliver(self._core.stop_all(self._closed))

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # inside

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
            except BaseException as error:  # Ctrl-C too leaves a step half done
                self._closed = EngineStopped(f"the engine stopped inside a step: {error!r}")
                self._deliver(self._core.stop_all(self._closed))
                if not isinstance(error, Exception):
                    raise
                raise self._closed from error

    def _deliver(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._inboxes.get(delta.request, self._unread).append(delta)


def check_recipe(recipe: Recipe, loaded: LoadedModel) -> None:
    """Raise InvalidRequest unless the recipe fits the model, and was made for its weights if it says so."""
    recipe.check(loaded.shape, loaded.name, weights_digest(loaded.module) if recipe.model else "")
