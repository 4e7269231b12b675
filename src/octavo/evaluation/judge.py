"""Mean KLD of recipes on a few windows: a quick judge for choosing, where `kld` is the full measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from octavo.evaluation.divergence import divergence, tiles
from octavo.evaluation.protocols import Scorer
from octavo.recipe import Recipe

__all__ = ["Judge"]


class Closing(Scorer, Protocol):
    def close(self) -> None: ...


class Judge:
    """Compares recipes with plain pages, whose final hidden states [n, hidden] stay in memory.

    engine    makes an engine of a recipe; it is closed after its pass
    rows      windows of token ids
    chunk     tokens a step; those of one step see each other exactly unless engines quantise all tokens
    """

    def __init__(
        self, engine: Callable[[Recipe], Closing], rows: Sequence[Sequence[int]], *, chunk: int = 512
    ) -> None:
        self.engine, self.rows, self.chunk = engine, rows, chunk
        self._reference: list[Tensor] = []

    @property
    def tokens(self) -> int:
        """Tokens of all windows."""
        return sum(map(len, self.rows))

    def kld(self, recipe: Recipe) -> float:
        """Mean KLD in nats a token of plain pages against the recipe's."""
        if not self._reference:
            plain = self.engine(recipe.with_(k="plain", v="plain", scales=None))
            self._reference = [self._pass(plain, row) for row in self.rows]
            plain.close()
        engine, total = self.engine(recipe), 0.0
        for row, kept in zip(self.rows, self._reference, strict=True):
            total += float(self._gaps(engine, kept, self._pass(engine, row)).double().sum())
        engine.close()
        return total / self.tokens

    def _pass(self, engine: Scorer, row: Sequence[int]) -> Tensor:
        return torch.cat([hidden for _, hidden in engine.score(row, chunk=self.chunk)])

    @staticmethod
    def _gaps(engine: Scorer, kept: Tensor, found: Tensor) -> Tensor:
        parts = []
        targets = torch.zeros(len(kept), dtype=torch.long, device=kept.device)
        for a, b in tiles(len(kept), engine.head(kept[:1]).shape[1]):
            parts.append(divergence(engine.head(kept[a:b]), engine.head(found[a:b]), targets[a:b]).kld)
        return torch.cat(parts)
