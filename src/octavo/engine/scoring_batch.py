"""Many texts scored at once: continuous batching for teacher forcing.

Texts that begin alike are computed once, as prompts are: the first leads, the others wait until the pages
they share exist. A text's chunks stay whole, whatever runs beside it: which tokens see each other exactly
does not depend on the company.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from octavo.engine.core import Core
from octavo.engine.requests import Sampling
from octavo.engine.scheduler import Grant
from octavo.engine.sequence import Sequence
from octavo.errors import PoolFull
from octavo.formats.base import PAGE
from octavo.pages.prefix import Key, page_keys

__all__ = ["ScoringBatch", "Text"]

_AHEAD = 4
"""Waiting texts looked at for each that may run: more would be a search through all of them at every step."""


@dataclass(eq=False)
class Text:
    """Tokens to score; hidden states are wanted from row `wanted` on, and told up to row `told`."""

    index: int
    sequence: Sequence
    wanted: int
    keys: list[Key]
    told: int = field(default=0)

    @property
    def shared(self) -> int:
        """Pages that may come from the pool: none where every row is wanted."""
        return self.wanted // PAGE


class ScoringBatch:
    """Scores texts over an engine's pool; its pages are given back by `close`, also half-way."""

    def __init__(self, core: Core, rows: list[tuple[list[int], int]], chunk: int):
        self.core, self.chunk = core, chunk
        self.ledger = core.memory.ledger
        self.waiting = deque(self._text(n, tokens, wanted) for n, (tokens, wanted) in enumerate(rows))
        self.running: list[Text] = []
        self.full = False  # the pool was, so none starts until one has ended

    def _text(self, index: int, tokens: list[int], wanted: int) -> Text:
        length = len(tokens)
        sequence = Sequence(next(self.core.ids), tokens, length, length, Sampling(), self.ledger.new())
        return Text(index, sequence, wanted, page_keys(self.ledger.root, tokens) if wanted else [])

    def run(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """(index, first row, hidden states [n, hidden]) as they come; a text's rows come in order, once."""
        while self.waiting or self.running:
            self._admit()
            texts, grants = self._grant()
            hidden = self.core.runner.hidden(self.core.batch(grants, all_rows=True)).flatten(0, -2)
            starts = [text.sequence.computed for text in texts]
            self._settle(texts, grants)
            for text, start, part in zip(
                texts, starts, torch.split(hidden, [g.n for g in grants]), strict=True
            ):
                skip = max(0, text.told - start)
                if skip < len(part):
                    text.told = start + len(part)
                    yield text.index, start + skip, part[skip:]

    def close(self) -> None:
        """Give all pages back."""
        for text in self.running:
            self.ledger.release(text.sequence.holding)
        self.running, self.waiting = [], deque()

    def _admit(self) -> None:
        """Start waiting texts, but for those whose beginning is being computed for another."""
        most = self.core.scheduler.max_sequences
        underway = {key for text in self.running for key in text.keys[text.sequence.computed // PAGE :]}
        kept: list[Text] = []
        for _ in range(_AHEAD * most):
            if len(self.running) >= most or not self.waiting or (self.full and self.running):
                break
            text = self.waiting.popleft()
            hits = self.ledger.match(text.keys, text.shared)
            if hits < text.shared and text.keys[hits] in underway:
                kept.append(text)
                continue
            if hits:
                self.ledger.adopt(text.sequence.holding, text.keys, hits)
                text.sequence.computed = hits * PAGE
            underway.update(text.keys[hits:])
            self.running.append(text)
        self.waiting.extendleft(reversed(kept))

    def _grant(self) -> tuple[list[Text], list[Grant]]:
        """A whole chunk each, as far as a step's tokens and the pool go. Raises PoolFull if nothing fits."""
        texts: list[Text] = []
        grants: list[Grant] = []
        budget = max(self.core.scheduler.chunk, self.chunk)
        for text in list(self.running):
            n = min(self.chunk, text.sequence.pending)
            if n > budget or text not in self.running:
                continue
            while text in self.running:
                try:
                    self.ledger.extend(text.sequence.holding, text.sequence.computed + n)
                except PoolFull:
                    if self.running == [text]:
                        raise
                    self._put_back(self.running[-1])
                else:
                    texts.append(text)
                    grants.append(Grant(text.sequence, n))
                    budget -= n
                    break
        return texts, grants

    def _put_back(self, text: Text) -> None:
        """There is no room: the youngest starts again later; what it told stays told."""
        self.running.remove(text)
        self.ledger.release(text.sequence.holding)
        text.sequence.restart()
        self.waiting.appendleft(text)
        self.full = True

    def _settle(self, texts: list[Text], grants: list[Grant]) -> None:
        moves = []
        for text, grant in zip(texts, grants, strict=True):
            sequence = text.sequence
            sequence.computed += grant.n
            share = text.wanted > 0
            moves += self.ledger.settle(sequence.holding, sequence.tokens, sequence.computed, share=share)
        self.core.memory.seal(moves)
        for text in texts:
            if not text.sequence.pending:
                self.running.remove(text)
                self.ledger.release(text.sequence.holding)
                self.full = False
