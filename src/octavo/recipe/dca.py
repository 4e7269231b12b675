"""When Dual Chunk Attention is on, and with which chunk length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE
from octavo.recipe.settings import Recipe

__all__ = ["DcaSettings", "resolve_dca"]


@dataclass(frozen=True)
class DcaSettings:
    """Chunks of `chunk` tokens, temperature `mscale`, on a model `trained` on so many; why it is on."""

    chunk: int
    mscale: float
    trained: int
    reason: str

    def __str__(self) -> str:
        scaled = f", mscale {self.mscale:g}" if self.mscale != 1 else ""
        return f"Dual Chunk Attention in chunks of {self.chunk} tokens{scaled}: {self.reason}"

    @property
    def identity(self) -> str:
        """What pages depend on."""
        return f"dca {self.chunk} {self.mscale!r}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def resolve_dca(recipe: Recipe, trained: int, context: int | None) -> DcaSettings | None:
    """What the recipe means for a model `trained` on so many tokens and the `context` asked for, if it was.

    "auto" is on exactly where the context exceeds the trained length: for the whole engine, because pages of
    requests with and without could not be shared. Raises InvalidRequest where no chunk fits, or the one
    asked for does not.
    """
    longer = context is not None and context > trained
    if recipe.dca == "off" or (recipe.dca == "auto" and not longer):
        return None
    if trained < 2 * PAGE:
        raise InvalidRequest(
            f"the model was trained for {trained} tokens; Dual Chunk Attention needs at least {2 * PAGE}, "
            f"two chunks of a page: keep the context within {trained} and dca off"
        )
    chunk = recipe.dca_chunk or max(PAGE, trained // 4 // PAGE * PAGE)
    if 2 * chunk > trained:
        raise InvalidRequest(
            f"dca_chunk is {chunk}; twice that must not exceed the model's trained length of {trained}, "
            f"so take a multiple of {PAGE} up to {trained // 2 // PAGE * PAGE}"
        )
    reason = f"the context of {context} exceeds the {trained} tokens trained" if longer else "asked for"
    return DcaSettings(chunk, recipe.dca_mscale, trained, reason)
