"""Who runs how many tokens this step, and who must wait or give way. Integers only.

A step serves, in this order: one token for every sequence that decodes; chunks of running prefills; new
admissions. Beside tokens that decode it has fewer of prompts. Prompts that begin alike and arrive together
are computed once: the first to be admitted leads, and the others wait until its pages exist. A leader that
goes away hands the lead to whoever comes next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from octavo.engine.sequence import Sequence
from octavo.errors import OctavoError, Overloaded, PoolFull
from octavo.formats.base import PAGE
from octavo.pages.ledger import Ledger, Move
from octavo.pages.prefix import Key, page_keys
from octavo.pages.sizing import ceil_pages

__all__ = ["Grant", "Scheduler", "Step"]


LEAST, SHARE = 512, 4
"""Who waits for their next token gets it sooner: beside decoding sequences a step has a quarter of the prompt
tokens, but no fewer than these if the chunk has them: short steps read much for little."""


@dataclass(frozen=True)
class Grant:
    """n tokens of a sequence run this step."""

    sequence: Sequence
    n: int


@dataclass
class Step:
    """One step: page copies to make first, tokens to run, sequences that cannot go on."""

    grants: list[Grant] = field(default_factory=list)
    copies: list[Move] = field(default_factory=list)
    failed: list[tuple[Sequence, OctavoError]] = field(default_factory=list)


class Scheduler:
    """Continuous batching over a ledger of pages."""

    def __init__(self, ledger: Ledger, *, chunk: int, max_sequences: int, max_waiting: int):
        self.ledger = ledger
        self.chunk = chunk
        self.max_sequences = max_sequences
        self.max_waiting = max_waiting
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preempted = 0
        self.hits = 0
        self._leaders: dict[Key, Sequence] = {}

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        if len(self.waiting) >= self.max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} requests wait and {len(self.running)} run; "
                f"the queue takes {self.max_waiting}. "
                "Try again later"
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended, was cancelled or failed: its pages go back at once."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._stop(sequence)

    def schedule(self) -> Step:
        """Grant this step's tokens; the pages for them are taken."""
        step = Step()
        decoding = [s for s in self.running if s.decoding]
        for sequence in decoding:
            self._grant(step, sequence, 1)
        budget = min(self.chunk, max(LEAST, self.chunk // SHARE)) if decoding else self.chunk
        for sequence in [s for s in self.running if not s.decoding]:
            budget -= self._grant(step, sequence, min(budget, sequence.pending, sequence.room))
        self._admit(step, budget)
        return step

    def settled(self, sequence: Sequence) -> None:
        """Pages of `sequence` were computed: followers need not wait for them any more."""
        complete = min(sequence.computed // PAGE, len(sequence.keys))
        for key in sequence.keys[sequence.led : complete]:
            if self._leaders.get(key) is sequence:
                del self._leaders[key]
        sequence.led = max(sequence.led, complete)

    def forget(self, sequence: Sequence) -> None:
        """What `sequence` computes from now on is its own: followers wait for it no longer."""
        for key in [k for k, leader in self._leaders.items() if leader is sequence]:
            del self._leaders[key]

    def park(self, sequence: Sequence) -> None:
        """A document is complete: it leaves the running set and keeps its pages."""
        self.running.remove(sequence)

    # granting

    def _grant(self, step: Step, sequence: Sequence, n: int) -> int:
        """Give `sequence` up to n tokens, preempting younger ones for pages; returns what it got."""
        if n == 0 or sequence not in self.running:
            return 0
        while True:
            try:
                self.ledger.extend(sequence.holding, sequence.computed + n)
            except PoolFull as full:
                victim = self._victim(step, sequence)
                if victim is not None:
                    self._preempt(victim)
                elif len(self.running) > 1:
                    self._preempt(sequence)
                    return 0
                else:
                    step.failed.append((sequence, full))
                    return 0
            else:
                step.grants.append(Grant(sequence, n))
                return n

    def _victim(self, step: Step, sequence: Sequence) -> Sequence | None:
        granted = {id(g.sequence) for g in step.grants}
        for other in reversed(self.running):
            if other is sequence:
                return None
            if id(other) not in granted:
                return other
        return None

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue's head without pages; its tokens stay, so nothing already sent is lost."""
        self.running.remove(sequence)
        self._stop(sequence)
        sequence.restart()
        self.waiting.appendleft(sequence)
        self.preempted += 1

    def _stop(self, sequence: Sequence) -> None:
        self.ledger.release(sequence.holding)
        self.forget(sequence)

    # admitting

    def _admit(self, step: Step, budget: int) -> None:
        for sequence in list(self.waiting):
            if budget <= 0 or len(self.running) >= self.max_sequences:
                return
            hits = self._hits(sequence)
            start = self._start(sequence, hits)
            if self._follows(sequence, start):
                continue
            if self.running and not self._fits(sequence, start):
                return
            try:
                copies = self._enter(sequence, hits)
                n = min(budget, sequence.pending, sequence.room)
                self.ledger.extend(sequence.holding, sequence.computed + n)
            except PoolFull as full:
                self._stop(sequence)
                sequence.restart()
                if not self.running:
                    step.failed.append((sequence, full))
                return
            step.copies += copies
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self._count_hits(sequence)
            self._lead(sequence)
            step.grants.append(Grant(sequence, n))
            budget -= n

    def _hits(self, sequence: Sequence) -> int:
        """Pages of the sequence's tokens that the pool already has; one token is always left to compute."""
        sequence.keys = page_keys(self.ledger.root, sequence.tokens, sequence.keys)
        most = min(len(sequence.tokens), sequence.limit) - 1
        return self.ledger.match(sequence.keys, most // PAGE)

    def _start(self, sequence: Sequence, hits: int) -> int:
        return max(hits * PAGE, sequence.base.computed if sequence.base else 0)

    def _follows(self, sequence: Sequence, start: int) -> bool:
        """Whether the next page is being computed by another sequence."""
        page = start // PAGE
        return page < len(sequence.keys) and self._leaders.get(sequence.keys[page], sequence) is not sequence

    def _fits(self, sequence: Sequence, start: int) -> bool:
        pages = ceil_pages(min(len(sequence.tokens) + 1, sequence.limit)) - start // PAGE
        for group in self.ledger.groups:
            room = group.allocator.available("plain") + (
                group.allocator.available("packed") if group.packs else 0
            )
            if group.window is None and pages > room:
                return False
        return True

    def _enter(self, sequence: Sequence, hits: int) -> list[Move]:
        """Take the shared pages: by hash, or as a fork of the document; returns the copies a fork needs."""
        copies: list[Move] = []
        base = sequence.base
        if base is not None and base.computed > hits * PAGE:
            copies = self.ledger.fork(base.holding, base.computed, sequence.holding)
            sequence.computed = base.computed
        elif hits:
            self.ledger.adopt(sequence.holding, sequence.keys, hits)
            sequence.computed = hits * PAGE
        return copies

    def _count_hits(self, sequence: Sequence) -> None:
        """At its first admission only: what a preempted sequence finds again was its own work."""
        if not sequence.entered:
            sequence.entered = True
            sequence.cached = sequence.computed
            self.hits += sequence.computed > 0

    def _lead(self, sequence: Sequence) -> None:
        sequence.led = sequence.computed // PAGE
        for key in sequence.keys[sequence.led :]:
            self._leaders.setdefault(key, sequence)
