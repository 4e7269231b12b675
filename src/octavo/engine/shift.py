"""Context shift: a sequence that is full forgets its oldest tokens behind a pinned head, and goes on.

Under Dual Chunk Attention a key is rotated by its position modulo the chunk length, so dropping a multiple of
that leaves every page that stays valid bit for bit: nothing is computed or packed again.
"""

from __future__ import annotations

from octavo.engine.sequence import Sequence
from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE
from octavo.model.shape import ModelShape
from octavo.pages.sizing import ceil_pages
from octavo.recipe.dca import DcaSettings

__all__ = ["check_shift", "droppable", "pinned"]


def pinned(keep: int) -> int:
    """Tokens of the head that stays: whole pages."""
    return ceil_pages(keep) * PAGE


def check_shift(dca: DcaSettings | None, shape: ModelShape, keep: int, limit: int) -> None:
    """Raise InvalidRequest unless sequences of `limit` tokens can drop a chunk behind `keep` pinned ones."""
    if dca is None:
        raise InvalidRequest(
            "context_shift needs Dual Chunk Attention, which leaves the pages that stay valid; start the "
            "engine with dca on, or with a context beyond the trained length",
            field="context_shift",
        )
    parts = [f"{pinned(keep)} pinned ones (keep or a document, in whole pages)", f"a chunk of {dca.chunk}"]
    if widest(shape):
        parts.append(f"a sliding window of {widest(shape)}")
    least = pinned(keep) + dca.chunk + widest(shape) + PAGE
    if limit < least:
        raise InvalidRequest(
            f"context_shift needs sequences of {least} tokens: {', '.join(parts)} and a page of {PAGE}; "
            f"they hold {limit}. Raise --memory or the context, or take a smaller keep or --dca-chunk",
            field="keep" if pinned(keep) >= limit else "context_shift",
        )


def droppable(sequence: Sequence, chunk: int, shape: ModelShape) -> int:
    """Tokens to drop from a sequence: half of what can go, in chunks, at least one; 0 where none can."""
    stored = sequence.computed // PAGE * PAGE
    chunks = max(0, stored - pinned(sequence.keep) - widest(shape)) // chunk
    return -(-chunks // 2) * chunk


def widest(shape: ModelShape) -> int:
    """Tokens that sliding windows look back on: they must all be there."""
    return max((pinned(layer.window) for layer in shape.layers if layer.window is not None), default=0)
