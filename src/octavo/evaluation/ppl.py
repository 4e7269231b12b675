"""Perplexity by position, with Dual Chunk Attention and without: does a model hold beyond its trained length?

The control runs first, within two chunks, where both must agree: if they do not, nothing beyond means
anything. A run that asked for Dual Chunk Attention and did not use it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.engine.stats import Stats
from octavo.errors import InvalidRequest
from octavo.evaluation.divergence import surprise, tiles
from octavo.evaluation.protocols import Scorer
from octavo.evaluation.validity import Validity, check_reference
from octavo.evaluation.windows import Windows
from octavo.recipe import Recipe

__all__ = ["PplRow", "PplRun", "check_agreement", "position_nll"]

TAIL = 1024
"""Tokens at a window's end whose perplexity is told apart."""
MOST_GAP = 0.02
"""What the logarithm of the perplexity may differ by within the trained length."""


class CountingEngine(Scorer, Protocol):
    def stats(self) -> Stats: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class PplRow:
    """One context and recipe. nll [ctx − 1] is the mean over windows at each position, in nats."""

    ctx: int
    recipe: Recipe
    dca: bool
    rows: dict[str, int]
    nll: Tensor
    entropy: float

    @property
    def ppl(self) -> float:
        return exp(float(self.nll.mean()))

    def as_row(self, trained: int) -> dict[str, Any]:
        """Plain data: the whole window, its last tokens, and by position."""
        return {
            "ctx": self.ctx,
            "dca": "on" if self.dca else "off",
            "k": self.recipe.k,
            "v": self.recipe.v,
            "ppl": self.ppl,
            "tail_ppl": exp(float(self.nll[-TAIL:].mean())) if len(self.nll) > TAIL else None,
            "buckets": [
                {"from": a, "to": b, "ppl": exp(float(self.nll[a:b].mean()))}
                for a, b in pairwise(edges(self.ctx, trained))
            ],
            "bands": self.rows,
        }


def edges(ctx: int, trained: int) -> list[int]:
    """Borders of the position buckets: quarters of the trained length, then doubling."""
    quarters = [trained * n // 4 for n in range(5)]
    while quarters[-1] < ctx:
        quarters.append(2 * quarters[-1])
    inside = [e for e in quarters if e < ctx - 1]
    return [*inside, ctx - 1]


@dataclass(frozen=True)
class PplRun:
    """Everything a run needs.

    engine    makes an engine of a recipe and a context; it is closed after its row
    recipes   the formats to measure; `modes` says with which `dca` settings: "off", "on"
    trained   the model's trained length
    """

    engine: Callable[[Recipe, int], CountingEngine]
    recipes: Sequence[Recipe]
    modes: Sequence[str]
    trained: int
    vocab: int
    chunk: int = 512
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    found: list[PplRow] = field(default_factory=list)

    def run(self, windows: Windows) -> list[PplRow]:
        """Rows at one context length."""
        rows = [self._row(recipe.with_(dca=mode), windows) for recipe in self.recipes for mode in self.modes]
        for row in rows:
            if row.recipe.dca == "on" and not row.rows.get("succ"):
                raise InvalidRequest(
                    f"Dual Chunk Attention was asked for and not used: {windows.ctx} tokens do not reach "
                    "beyond the first chunk; take a longer --ctx or a smaller --dca-chunk"
                )
        self.found.extend(rows)
        return rows

    def control(self, windows: Windows) -> tuple[Validity, list[PplRow]]:
        """Plain pages within two chunks, Dual Chunk Attention off and on: sane, and agreed.

        Without a temperature, which changes short texts too.
        """
        plain = self.recipes[0].with_(k="plain", v="plain", dca_mscale=1.0)
        off, on = (self._row(plain.with_(dca=mode), windows) for mode in ("off", "on"))
        sane = check_reference(off.entropy, self.vocab, off.ppl)
        return (sane if not sane.valid else check_agreement(off, on)), [off, on]

    def _row(self, recipe: Recipe, windows: Windows) -> PplRow:
        engine = self.engine(recipe, windows.ctx)
        name = f"ctx {windows.ctx} {recipe.pair} dca {recipe.dca}"
        try:
            total, entropy = torch.zeros(windows.ctx - 1, dtype=torch.float64), 0.0
            for n, tokens in enumerate(windows.rows):
                nll, own = position_nll(engine, tokens, self.chunk)
                total += nll
                entropy += own
                self.progress(name, n + 1, len(windows.rows))
            dca = engine.stats().dca
        finally:
            engine.close()
        count = len(windows.rows)
        used = dca["rows"] if dca else {}
        return PplRow(windows.ctx, recipe, dca is not None, used, total / count, entropy / count)


def position_nll(engine: Scorer, tokens: Sequence[int], chunk: int) -> tuple[Tensor, float]:
    """Of one window: −log p of each token but the first [ctx − 1] float64, in nats, and the mean entropy."""
    nll, entropy = torch.zeros(len(tokens), dtype=torch.float64), 0.0
    targets = torch.tensor([*tokens[1:], 0])
    for start, hidden in engine.score(tokens, chunk=chunk):
        vocab = engine.head(hidden[:1]).shape[1]
        for a, b in tiles(len(hidden), vocab):
            told = surprise(engine.head(hidden[a:b]), targets[start + a : start + b].to(hidden.device))
            nll[start + a : start + b] = told.nll.double().cpu()
            entropy += float(told.entropy.double().sum())
    return nll[:-1], entropy / len(tokens)


def check_agreement(off: PplRow, on: PplRow) -> Validity:
    """Whether Dual Chunk Attention leaves a text alone that it need not change."""
    gap = abs(log(on.ppl / off.ppl))
    if gap <= MOST_GAP:
        return Validity()
    return Validity(
        (
            f"at {off.ctx} tokens, within two chunks, perplexity is {off.ppl:.4g} without and "
            f"{on.ppl:.4g} with Dual Chunk Attention; more than {MOST_GAP:.0%} apart, the engine or chunk "
            "length is at fault",
        )
    )
