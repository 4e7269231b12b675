"""Teacher forcing over the same pages, plans and kernels that serve requests."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from octavo.engine.batch import make_batch
from octavo.engine.core import Core
from octavo.engine.requests import Sampling
from octavo.engine.scheduler import Grant
from octavo.engine.sequence import Sequence
from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE
from octavo.pages.ledger import Ledger
from octavo.pages.prefix import page_keys

__all__ = ["score"]


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
            batch = make_batch(
                ledger, [Grant(sequence, n)], core.backend, core.loaded.shape.groups, all_rows=True
            )
            hidden = core.runner.hidden(batch)
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
