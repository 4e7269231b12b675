"""Random histories: pages are conserved after every step, and nobody ever reads another's tokens."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from octavo import Engine, Recipe
from octavo.engine.documents import Document
from octavo.engine.requests import Delta
from octavo.errors import DocumentInUse, InvalidRequest, PoolFull, UnknownDocument
from octavo.model.load import LoadedModel
from octavo.pages.ledger import GONE
from octavo.pages.sizing import ceil_pages
from tests.engine.helpers import (
    PLAIN,
    Eager,
    audit_engine,
    greedy,
    live,
    random_tokens,
    tiny_engine,
    transformers_logits,
)
from tests.engine.slow_dca import slow_logits
from tests.tiny import tiny_loaded

TIE = 1e-3
"""Logits this close may swap places between two ways of adding up the same sums."""

KINDS: dict[str, tuple[str, Recipe, str]] = {
    "llama": ("llama", PLAIN, "1.3MB"),  # 10 pages
    "gemma3": ("gemma3", PLAIN, "1MB"),  # windows of 80 tokens slide
    "chunks": ("llama", Recipe("plain", "plain", dca="on", dca_chunk=64), "1.3MB"),
    "shifts": ("gemma3", Recipe("plain", "plain", dca="on", dca_chunk=64), "1.6MB"),
    "packed shifts": ("llama", Recipe("q8_0", "q4_0", recent=0, dca="on", dca_chunk=64), "1MB"),
    "packed": ("llama", Recipe("q8_0", "q4_0", recent=0), "1MB"),
    "packed windows": ("gemma3", Recipe("q8_0", "q8_0", sliding=True), "1MB"),
}


SHIFTING = {"shifts": 576, "packed shifts": 448}
"""Contexts of the kinds whose requests shift theirs."""


@cache
def loaded(family: str) -> LoadedModel:
    return tiny_loaded(family)


class Histories(RuleBasedStateMachine):
    """One engine with a pool of a few pages; what it answers is checked when the history ends."""

    kind = "llama"
    ahead = False
    seen: ClassVar[Counter[str]] = Counter()

    requests = Bundle("requests")
    documents = Bundle("documents")

    def __init__(self) -> None:
        super().__init__()
        self.family, recipe, memory = KINDS[self.kind]
        self.exact, self.chunked = not recipe.packs, recipe.dca_chunk
        self.engine = Engine(
            loaded(self.family), recipe, memory=memory, chunk=96, max_sequences=4, max_waiting=200,
            context=SHIFTING.get(self.kind),
        )  # fmt: skip
        self.decoder = Eager(self.engine) if self.ahead else None
        self.prompts: dict[int, tuple[list[int], int]] = {}
        self.answers: dict[int, list[Delta]] = {}

    # what may happen

    @rule(
        target=requests, stream=st.sampled_from((0, 1)), shared=st.sampled_from((0, 40, 64, 150, 250)),
        own=st.integers(1, 70), wanted=st.sampled_from((1, 20, 60, 130)), copies=st.sampled_from((1, 3)),
    )  # fmt: skip
    def submit(self, stream: int, shared: int, own: int, wanted: int, copies: int) -> Any:
        return multiple(*(self._submit(text(stream, shared, own + n), wanted, None) for n in range(copies)))

    @rule(target=requests, document=documents, own=st.integers(1, 70), wanted=st.sampled_from((1, 20, 60)))
    def fork(self, document: Document, own: int, wanted: int) -> Any:
        if self.engine.documents.get(document.name) is not document:  # another may have its name by now
            with pytest.raises(UnknownDocument):
                self.engine.submit([1], document=document)
            return multiple()
        return self._submit(text(2, 0, own), wanted, document)

    @rule(target=documents, stream=st.sampled_from((0, 1)), length=st.sampled_from((30, 64, 100, 150, 260)))
    def hold(self, stream: int, length: int) -> Document:
        return self.engine.begin_document(text(stream, length, 0))

    @rule(steps=st.sampled_from((1, 2, 10, 40)))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    @rule(request=consumes(requests))
    def abort(self, request: int) -> None:
        ended = self._ended(request)
        before = live(self.engine)
        assert self.engine.abort(request) is not ended
        self._note(self.engine.unread())
        assert self._ended(request)
        assert live(self.engine) <= before

    @rule(document=consumes(documents))
    def release(self, document: Document) -> None:
        if document.error is not None:
            assert isinstance(document.error, PoolFull)
        elif document.users:
            self.seen["in use"] += 1
            with pytest.raises(DocumentInUse):
                document.release()
        else:
            document.release()
            with pytest.raises(UnknownDocument):
                document.release()

    @precondition(lambda self: len(self.prompts) > 8)
    @rule()
    def finish(self) -> None:
        """Let everything end; only documents hold pages then."""
        for _ in range(9000):
            if self.engine.idle:
                break
            self._step()
        assert self.engine.idle, "requests wait for each other"
        if not self.engine.documents:
            assert live(self.engine) == 0
        assert all(self._ended(id) for id in self.prompts)

    # what must hold

    @invariant()
    def conserved(self) -> None:
        audit_engine(self.engine)
        assert self.engine.stats().requests["running"] <= 4

    def teardown(self) -> None:
        self.finish()
        self.seen["preempted"] += self.engine.stats().requests["preempted"]
        packed = [group["packed"] for group in self.engine.stats().pages.values()]
        self.seen["ahead"] += self.decoder.steps if self.decoder else 0
        self.seen["packed"] += any(count["live"] + count["cached"] for count in packed)
        for id, (prompt, wanted) in self.prompts.items():
            self._check_answer(prompt, wanted, self.answers[id])
        for document in list(self.engine.documents.values()):
            document.release()
        assert live(self.engine) == 0
        audit_engine(self.engine)
        self.engine.close()

    # how

    def _submit(self, tokens: list[int], wanted: int, document: Document | None) -> int:
        rules = greedy(wanted)
        if self.kind in SHIFTING:
            wanted *= 5
            rules = greedy(wanted, context_shift=True)
        id = self.engine.submit(tokens, rules, document=document)
        held = document.sequence.tokens if document else []
        self.prompts[id] = ([*held, *tokens], wanted)
        self.answers[id] = []
        return id

    def _step(self) -> None:
        self._note(self.engine.step())
        audit_engine(self.engine)
        tables = [t for s in self.engine._core.scheduler.running for t in s.holding.tables]
        self.seen["gone"] += sum(GONE in table for table in tables)

    def _note(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            assert not self._ended(delta.request), "a delta after the last one"
            self.answers[delta.request].append(delta)
            if delta.error is not None and self.kind == "llama":
                self._check_full(delta)

    def _check_full(self, delta: Delta) -> None:
        """A request fails for want of pages only where documents leave too few for it alone."""
        tables = [d.sequence.holding.tables[0] for d in self.engine.documents.values()]
        held = {page for table in tables for page in table}
        tokens = delta.usage.prompt_tokens + delta.usage.completion_tokens
        assert len(held) + ceil_pages(tokens + 1) > self.engine._core.memory.sizes[0].plain

    def _ended(self, id: int) -> bool:
        return bool(self.answers[id]) and self.answers[id][-1].finish is not None

    def _check_answer(self, prompt: list[int], wanted: int, deltas: list[Delta]) -> None:
        tokens = [t for d in deltas for t in d.tokens]
        last = deltas[-1]
        self.seen[str(last.finish)] += 1
        assert last.usage.prompt_tokens == len(prompt)
        assert last.usage.completion_tokens == len(tokens)
        assert last.usage.cached_tokens < len(prompt)
        shifted = last.usage.context_shifted
        self.seen["shifted"] += shifted > 0
        if last.finish == "length" and self.kind in SHIFTING:
            assert len(tokens) == wanted
            assert len(prompt) + len(tokens) - shifted <= self.engine.context + 1
        elif last.finish == "length":
            most = min(self.engine.context, self.engine._core.memory.capacity) - len(prompt)
            assert len(tokens) == min(wanted, most)
        elif last.finish == "error":
            assert isinstance(last.error, PoolFull), last.error
            self.seen["full"] += 1
        else:
            assert last.finish == "abort"
        if self.exact and tokens and not shifted:
            logits = self._right([*prompt, *tokens])[len(prompt) - 1 : -1]
            chosen = logits.gather(1, logits.new_tensor(tokens).long()[:, None])[:, 0]
            assert float((logits.amax(1) - chosen).max()) <= TIE, "these tokens come from somebody else"

    def _right(self, tokens: list[int]) -> torch.Tensor:
        if self.chunked:
            return slow_logits(self.family, tokens, self.chunked, exact=False)
        return transformers_logits(self.family, tokens)


@cache
def stream_of(n: int) -> list[int]:
    return random_tokens(400, 50 + n)


def text(stream: int, shared: int, own: int) -> list[int]:
    """The first tokens of a stream that many prompts begin with, then some of its own."""
    return stream_of(stream)[:shared] + random_tokens(own, 100 + own)


@pytest.mark.parametrize("ahead", [False, True], ids=("", "ahead"))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("examples", "steps"),
    [pytest.param(6, 25), pytest.param(30, 50, marks=pytest.mark.slow)],
    ids=("few", "many"),
)
def test_histories(kind: str, examples: int, steps: int, ahead: bool) -> None:
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        type("Histories", (Histories,), {"kind": kind, "ahead": ahead, "seen": seen}),
        settings=settings(settings.get_profile("same"), max_examples=examples, stateful_step_count=steps),
    )
    assert seen["length"]


EXPECTED = {
    "llama": {"length", "abort", "error", "preempted", "in use"},
    "gemma3": {"length", "abort", "preempted", "in use", "gone"},
    "chunks": {"length", "abort", "error", "preempted", "in use"},
    "shifts": {"length", "abort", "preempted", "in use", "gone", "shifted"},
    "packed shifts": {"length", "abort", "preempted", "in use", "packed", "shifted"},
    "packed": {"length", "abort", "preempted", "in use", "packed"},
    "packed windows": {"length", "abort", "preempted", "in use", "packed", "gone"},
}


@pytest.mark.parametrize("ahead", [False, True], ids=("", "ahead"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_history_of_everything(kind: str, ahead: bool) -> None:
    """One history that is sure to meet what the others may meet, or they prove nothing."""
    seen: Counter[str] = Counter()
    history = type("Histories", (Histories,), {"kind": kind, "ahead": ahead, "seen": seen})()
    play(history)
    history.teardown()
    assert {name for name, n in seen.items() if n} >= EXPECTED[kind] | ({"ahead"} if ahead else set()), seen


def play(history: Histories) -> None:
    capacity = history.engine._core.memory.capacity
    document = history.engine.begin_document(text(0, 150, 0))
    history.run(3)
    fork = history._submit(text(2, 0, 30), 150, document)
    history.run(5)
    history.release(document)  # in use: refused
    for own in (1, 2, 3):
        history._submit(text(1, 250, own), capacity // 5, None)
        history.conserved()
    history.run(10)
    history.abort(fork)
    history.run(40)
    history._submit(text(0, 400, capacity - 420), 5, None)  # more than documents leave
    history.finish()
    history.release(document)


def test_a_name_can_be_taken_again_after_release() -> None:
    engine = tiny_engine()
    engine.document("some text", name="a").release()
    with engine.document("other text", name="a") as again, pytest.raises(InvalidRequest, match="exists"):
        assert again.tokens
        engine.document("third text", name="a")
