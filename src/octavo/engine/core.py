"""The loop: schedule, run, settle. No callers' conveniences; those are in engine.py."""

from __future__ import annotations

import time
from itertools import count

import torch

from octavo.attention.backend import Backend
from octavo.attention.dca import DualChunk
from octavo.attention.hook import Attention
from octavo.engine.ahead import Ahead, Decoder
from octavo.engine.batch import Batch, make_batch
from octavo.engine.documents import Document
from octavo.engine.memory import Memory
from octavo.engine.request import Request
from octavo.engine.requests import Delta
from octavo.engine.runner import Runner
from octavo.engine.sampler import pick
from octavo.engine.scheduler import Grant, Scheduler
from octavo.engine.sequence import Sequence
from octavo.engine.shift import droppable, pinned
from octavo.engine.stats import Clock
from octavo.errors import InvalidRequest, NotFinite, OctavoError
from octavo.formats.base import PAGE
from octavo.model.load import LoadedModel
from octavo.pages.ledger import Move
from octavo.recipe import Recipe
from octavo.recipe.dca import DcaSettings

__all__ = ["Core"]


class Core:
    """Sequences in, deltas out, one batch a call."""

    def __init__(
        self,
        loaded: LoadedModel,
        recipe: Recipe,
        backend: Backend,
        memory: Memory,
        *,
        max_sequences: int,
        max_waiting: int,
        all_quantised: bool,
        compile: bool,
        context: int,
        dca: DcaSettings | None = None,
    ):
        self.loaded, self.recipe, self.backend, self.memory = loaded, recipe, backend, memory
        attention = Attention(
            loaded.shape, memory.pools, backend, exact_pages=recipe.exact_pages, round_trip=all_quantised
        )
        self.dca = dca
        if dca is not None:
            attention.dual = DualChunk(loaded.module, loaded.shape, dca.chunk, dca.mscale)
        self.dual = attention.dual
        self.runner = Runner(loaded, attention, compile=compile)
        self.scheduler = Scheduler(
            memory.ledger, chunk=memory.chunk, max_sequences=max_sequences, max_waiting=max_waiting
        )
        self.graphs = make_graphs(self.runner, memory, loaded, backend, context)
        self.ahead = Ahead(self.scheduler, self.graphs)
        self.requests: dict[int, Request] = {}
        self.documents: dict[str, Document] = {}
        self.clock = Clock()
        self.ids = count(1)
        self._out: list[Delta] = []  # not handed over yet: a step that breaks must not lose them

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def step(self) -> list[Delta]:
        """Run one batch; returns what it added to each request, failures included."""
        began = time.perf_counter()
        step = self.scheduler.schedule()
        for sequence, error in step.failed:
            if not self._shift(sequence):
                self._fail(sequence, error)
        if not step.grants:
            return self._hand_over()
        decode = sum(g.sequence.decoding for g in step.grants)
        prefill = sum(g.n for g in step.grants if not g.sequence.decoding)
        self.memory.copy(step.copies)
        logits = self._run(step.grants)
        self._settle(step.grants, logits)
        self.clock.record(prefill, decode, len(logits), time.perf_counter() - began)
        return self._hand_over()

    def _run(self, grants: list[Grant]) -> torch.Tensor:
        """Logits of the sequences that take a token this step. Those that decode may have run ahead; a step
        that only decodes replays a graph if there can be one."""
        decodes = [g for g in grants if g.sequence.decoding]
        ready = self.ahead.take(decodes)
        if ready is None and self.graphs and len(decodes) == len(grants):
            ready = self.graphs.run(grants)
        rest = grants if ready is None else grants[len(ready) :]
        if ready is not None and not rest:
            return ready
        logits = self.runner.logits(self.batch(rest))
        return logits if ready is None else torch.cat((ready, logits))

    def batch(self, grants: list[Grant], *, all_rows: bool = False) -> Batch:
        """What one forward pass over `grants` needs; logits of all rows, or of those that take a token."""
        ledger, groups = self.memory.ledger, self.loaded.shape.groups
        return make_batch(ledger, grants, self.backend, groups, all_rows=all_rows, dual=self.dual)

    def check(self, sequence: Sequence) -> None:
        """InvalidRequest for what another engine prepared: its tokens, pages and ids mean nothing here."""
        if sequence.holding.ledger is not self.memory.ledger:
            raise InvalidRequest(
                f"{len(sequence.tokens)} tokens were prepared by another engine; start them on that one, or "
                "prepare them with this one"
            )

    def start(self, request: Request) -> None:
        """Queue a request, or raise Overloaded; InvalidRequest for one that was queued before."""
        if request.queued:
            raise InvalidRequest(f"request {request.id} was queued before; prepare it again")
        self.scheduler.add(request.sequence)
        request.queued = True
        self.requests[request.id] = request
        if request.document is not None:
            request.document.users += 1

    def abort(self, id: int) -> Delta | None:
        """Cancel a request; its pages are free at once."""
        request = self.requests.get(id)
        if request is None:
            return None
        self._end(request)
        self.clock.aborted += 1
        return request.fail("abort")

    def stop_all(self, error: OctavoError) -> list[Delta]:
        """The engine cannot go on: every request hears why."""
        for request in list(self.requests.values()):
            self._end(request)
            self.clock.failed += 1
            self._out.append(request.fail("error", error))
        for document in list(self.documents.values()):
            if not document.ready:
                self._drop_document(document, error)
        if self.graphs is not None:
            self.graphs.clear()
        self.graphs, self.ahead = None, Ahead(self.scheduler, None)
        return self._hand_over()

    def _hand_over(self) -> list[Delta]:
        deltas, self._out = self._out, []
        return deltas

    # settling

    def _settle(self, grants: list[Grant], logits: torch.Tensor) -> None:
        """Account for the step's tokens, take the sampled ones, and pack what has grown old."""
        for grant in grants:
            grant.sequence.computed += grant.n
        sampled = [g.sequence for g in grants if not g.sequence.pending and not g.sequence.pinned]
        picked = pick(logits, sampled)
        moves = [move for grant in grants for move in self._settle_pages(grant.sequence)]
        self.memory.seal(moves)
        self.clock.peak_cells = max(self.clock.peak_cells, self.memory.cells)
        self.clock.peak_bytes = max(self.clock.peak_bytes, self.memory.live_bytes)
        self.ahead.begin(sampled, picked.tokens)
        for sequence, choice in zip(sampled, picked.read(), strict=True):
            request = self.requests[sequence.id]
            if not choice.sound:
                self._fail(sequence, NotFinite(self.loaded.shape.dtype, sequence.generated))
                continue
            self._out.append(request.accept(choice, self.loaded.tokenizer))
            if self._out[-1].finish:
                self._end(request)
                self.clock.finished += 1
        if self.dual is not None and any(delta.finish for delta in self._out):
            self.dual.verify()
        for grant in grants:
            if not grant.sequence.room:
                self._shift(grant.sequence)
            if grant.sequence.done:
                self._document_ready(grant.sequence)

    def _settle_pages(self, sequence: Sequence) -> list[Move]:
        moves = self.memory.ledger.settle(
            sequence.holding, sequence.tokens, sequence.computed, share=not sequence.private
        )
        self.scheduler.settled(sequence)
        return moves

    def _shift(self, sequence: Sequence) -> bool:
        """Drop the oldest tokens of a running sequence that asked for it and has enough of them."""
        asked = sequence.sampling.context_shift and sequence in self.scheduler.running
        if self.dual is None or not asked:
            return False
        head, count = pinned(sequence.keep), droppable(sequence, self.dual.chunk, self.loaded.shape)
        if count == 0:
            return False
        self.memory.ledger.drop(sequence.holding, head // PAGE, count // PAGE)
        self.scheduler.forget(sequence)
        sequence.drop(head, count)
        self.clock.shifts += 1
        self.clock.dropped += count
        self.memory.seal(self._settle_pages(sequence))  # what waited for a packed slot has one now
        return True

    def _end(self, request: Request) -> None:
        self.scheduler.remove(request.sequence)
        self.clock.cached += request.usage().cached_tokens
        del self.requests[request.id]
        if request.document is not None:
            request.document.users -= 1

    def _fail(self, sequence: Sequence, error: OctavoError) -> None:
        if sequence.pinned:
            self._drop_document(self._document_of(sequence), error)
            return
        request = self.requests[sequence.id]
        self._end(request)
        self.clock.failed += 1
        self._out.append(request.fail("error", error))

    def _document_of(self, sequence: Sequence) -> Document:
        return next(d for d in self.documents.values() if d.sequence is sequence)

    def _document_ready(self, sequence: Sequence) -> None:
        self.scheduler.park(sequence)
        self.clock.cached += sequence.cached
        self._document_of(sequence).ready = True

    def _drop_document(self, document: Document, error: OctavoError) -> None:
        document.error = error
        self.scheduler.remove(document.sequence)
        del self.documents[document.name]


def make_graphs(
    runner: Runner, memory: Memory, loaded: LoadedModel, backend: Backend, context: int
) -> Decoder | None:
    """CUDA graphs for decoding, where the backend can be captured."""
    if not backend.graphs:
        return None
    from octavo.engine.graphs import DecodeGraphs

    return DecodeGraphs(runner, memory, loaded.shape, context)
