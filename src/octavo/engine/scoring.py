"""Teacher forcing over the same pages, plans and kernels that serve requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager

import torch

from octavo.engine.core import Core
from octavo.engine.intake import Intake
from octavo.engine.requests import Sampling
from octavo.engine.scheduler import Grant
from octavo.engine.scoring_batch import ScoringBatch
from octavo.engine.sequence import Sequence
from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE

__all__ = ["Scoring"]

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
        return ((start, hidden) for _, start, hidden in self.score_many([(tokens, wanted)], chunk=chunk))

    def score_rows(self, rows: Ids[Ids[int]], *, chunk: int = 64) -> Iterator[tuple[int, torch.Tensor]]:
        """`score` for several texts of one length side by side: (start, hidden states [W, n, hidden])."""
        self._check_open()
        if len({len(row) for row in rows}) != 1:
            raise InvalidRequest(f"rows are of one length, not {sorted({len(row) for row in rows})} tokens")
        return score_rows(self._core, [self._intake.scored(row, chunk, 0) for row in rows], chunk)

    def score_many(
        self, texts: Ids[tuple[Ids[int], int]], *, chunk: int = 64
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        """`score` for (tokens, wanted) of many texts, run side by side: (which text, start, hidden states).

        Rows of a text come in order. As many texts as the engine takes sequences run at once; beginnings that
        several share are computed once, where their rows are not wanted.
        """
        self._check_open()
        rows = [(self._intake.scored(tokens, chunk, wanted), wanted) for tokens, wanted in texts]
        return score_many(self._core, rows, chunk)

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


def score_rows(core: Core, rows: list[list[int]], chunk: int) -> Iterator[tuple[int, torch.Tensor]]:
    """(start, hidden [W, n, hidden]) of each chunk of W rows of tokens; the private pages are given back."""
    check_chunk(core, chunk)
    ledger = core.memory.ledger
    sequences = [Sequence(next(core.ids), row, len(row), len(row), Sampling(), ledger.new()) for row in rows]
    try:
        while pending := sequences[0].pending:
            n, start = min(chunk, pending), sequences[0].computed
            for sequence in sequences:
                ledger.extend(sequence.holding, start + n)
            grants = [Grant(sequence, n) for sequence in sequences]
            hidden = core.runner.hidden(core.batch(grants, all_rows=True))
            moves = []
            for sequence in sequences:
                sequence.computed += n
                moves += ledger.settle(sequence.holding, sequence.tokens, start + n, share=False)
            core.memory.seal(moves)
            yield start, hidden.view(len(rows), n, -1)
    finally:
        for sequence in sequences:
            ledger.release(sequence.holding)


def score_many(
    core: Core, rows: list[tuple[list[int], int]], chunk: int
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(row, start, hidden) of many rows of any length; see Scoring.score_many."""
    check_chunk(core, chunk)
    batch = ScoringBatch(core, rows, chunk)
    try:
        yield from batch.run()
    finally:
        batch.close()


def check_chunk(core: Core, chunk: int) -> None:
    """Whole pages where a chunk's pages are read as if packed."""
    if core.runner.attention.round_trip and chunk % PAGE:
        raise InvalidRequest(f"chunk is {chunk}; with all tokens quantised it must be a multiple of {PAGE}")
