"""Teacher forcing over the same pages, plans and kernels that serve requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager

import torch

from octavo.engine.batch import make_batch
from octavo.engine.core import Core
from octavo.engine.intake import Intake
from octavo.engine.requests import Sampling
from octavo.engine.scheduler import Grant
from octavo.engine.sequence import Sequence
from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE
from octavo.pages.ledger import Ledger
from octavo.pages.prefix import page_keys

__all__ = ["Scoring", "score"]

Shown = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Is shown layer, q [T, H, D], k and v [T, G, D] after RoPE."""


class Scoring:
    """The part of Engine that evaluation uses."""

    _core: Core
    _intake: Intake

    def _check_open(self) -> None:
        raise NotImplementedError

    def score(
        self, tokens: Ids[int], *, chunk: int = 64, wanted: int = 0
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Teacher forcing: (start, final hidden states [n, hidden]) chunk by chunk, on private pages.

        Tokens of one chunk see each other exactly; pages are packed as they are when serving. Rows before
        `wanted` need not come: then pages are shared, and what the pool already has of them is not computed
        again.
        """
        self._check_open()
        return score(
            self._core, self._intake.scored(tokens, chunk, wanted), chunk, next(self._core.ids), wanted
        )

    @contextmanager
    def watched(self, see: Shown) -> Iterator[None]:
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


def score(
    core: Core, tokens: list[int], chunk: int, id: int, wanted: int = 0
) -> Iterator[tuple[int, torch.Tensor]]:
    """(start, hidden [n, hidden]) for each chunk of `tokens`; its pages are given back at the end.

    They are private if every row is wanted; else rows before `wanted` may come from shared pages, uncomputed.
    """
    if core.runner.attention.round_trip and chunk % PAGE:
        raise InvalidRequest(f"chunk is {chunk}; with all tokens quantised it must be a multiple of {PAGE}")
    ledger = core.memory.ledger
    sequence = Sequence(id, tokens, len(tokens), len(tokens), Sampling(), ledger.new())
    try:
        if wanted:
            enter(ledger, sequence, wanted // PAGE)
        while sequence.pending:
            n = min(chunk, sequence.pending)
            ledger.extend(sequence.holding, sequence.computed + n)
            grants, groups = [Grant(sequence, n)], core.loaded.shape.groups
            hidden = core.runner.hidden(
                make_batch(ledger, grants, core.backend, groups, dual=core.dual, all_rows=True)
            )
            if core.dual is not None:
                core.dual.note(sequence.computed, n)
            start = sequence.computed
            sequence.computed += n
            core.memory.seal(ledger.settle(sequence.holding, tokens, sequence.computed, share=wanted > 0))
            yield start, hidden
    finally:
        ledger.release(sequence.holding)


def enter(ledger: Ledger, sequence: Sequence, pages: int) -> None:
    """Read up to `pages` pages of the sequence's tokens from the pool, as far as it has them."""
    keys = page_keys(ledger.root, sequence.tokens)
    hits = ledger.match(keys, sequence.tokens, pages)
    if hits:
        ledger.adopt(sequence.holding, keys, sequence.tokens, hits)
        sequence.computed = hits * PAGE
