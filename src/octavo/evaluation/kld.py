"""KLD of KV recipes against the same engine with plain pages: teacher-forced, over the whole vocabulary.

The order is that of trust: the reference must be sane, q8_0 must look harmless on it (validity control),
plain against plain must be quiet (noise floor), and only then is anything measured. Memory is bounded by
a tile of logits (`divergence.TILE_BYTES`), hidden states of windows run side by side, and 9 bytes a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.evaluation.base import Base, BaseWriter, open_base
from octavo.evaluation.divergence import Divergence, Surprise, divergence, surprise, tiles
from octavo.evaluation.protocols import Scorer
from octavo.evaluation.rows import RowFile, Summary, summarise
from octavo.evaluation.sizes import bits_per_value, bytes_per_token
from octavo.evaluation.validity import Validity, check_control, check_reference
from octavo.evaluation.windows import Windows, other_chunk
from octavo.model.shape import ModelShape
from octavo.recipe import Recipe

__all__ = ["ContextResult", "KldRun", "Progress", "make_base", "measure"]

Progress = Callable[[str, int, int], None]
"""Called with what is running, windows done, windows in all."""


class ScoringEngine(Scorer, Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True)
class ContextResult:
    """One context length. `rows` is empty unless `validity` says valid."""

    ctx: int
    tokens: int
    reference: dict[str, float]
    validity: Validity
    control: dict[str, Any] | None = None
    noise_floor: dict[str, Any] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class KldRun:
    """Everything a run needs.

    engine      makes an engine of a recipe and a chunk size; it is closed after its row
    identity    what a base must agree with: model, tokenizer, text, version; ctx and windows are added
    recipes     what to measure; every one has the same settings but for its formats
    chunk       tokens prefilled at a time; `noise_chunk` the other size the noise floor uses
    together    windows run side by side; the engine must hold as many
    """

    engine: Callable[[Recipe, int], ScoringEngine]
    identity: dict[str, str]
    recipes: Sequence[Recipe]
    shape: ModelShape
    folder: Path
    chunk: int = 64
    noise_chunk: int = 48
    together: int = 1
    progress: Progress = lambda what, done, total: None

    def run(self, windows: Windows, base_path: Path | None = None) -> ContextResult:
        """Measure at one context length; a base at `base_path` is used, or made there."""
        told = {"ctx": str(windows.ctx), "windows": str(len(windows.rows))}
        identity = {**self.identity, **told, **self._settings().dca_words}
        base = self._base(windows, base_path or self.folder / f"base-{windows.ctx}.safetensors", identity)
        reference = reference_figures(base)
        result = ContextResult(
            windows.ctx,
            windows.tokens,
            reference,
            check_reference(reference["entropy"], self.shape.vocab, reference["ppl"]),
        )
        if not result.validity.valid:
            return result
        control = self._row(self._settings(k="q8_0", v="q8_0"), windows, base, identity, "control")
        validity = check_control(control["top1"], control["mean_kld"], self.shape.dtype)
        result = ContextResult(windows.ctx, windows.tokens, reference, validity, control)
        if not validity.valid:
            return result
        plain = self._settings(k="plain", v="plain")
        noise = other_chunk(windows.ctx, self.chunk, self.noise_chunk)
        floor = self._row(plain, windows, base, identity, "noise_floor", chunk=noise)
        rows = [self._row(recipe, windows, base, identity, recipe.pair) for recipe in self.recipes]
        return ContextResult(windows.ctx, windows.tokens, reference, validity, control, floor, rows)

    def _settings(self, **formats: str) -> Recipe:
        return (self.recipes[0] if self.recipes else Recipe()).with_(**formats)

    def _base(self, windows: Windows, path: Path, identity: dict[str, str]) -> Base:
        if not path.exists():
            engine = self.engine(self._settings(k="plain", v="plain"), self.chunk)
            try:
                make_base(
                    engine, windows, path, identity,
                    chunk=self.chunk, together=self.together, progress=self.progress,
                )  # fmt: skip
            finally:
                engine.close()
        return open_base(path, identity)

    def _row(
        self,
        recipe: Recipe,
        windows: Windows,
        base: Base,
        identity: dict[str, str],
        name: str,
        *,
        chunk: int | None = None,
    ) -> dict[str, Any]:
        chunk = chunk or self.chunk
        told = {**identity, "recipe": repr(recipe), "chunk": str(chunk)}
        # Named by what is measured: the control is also the row of q8_0, and is measured once.
        place = f"{windows.ctx}-{recipe.pair.replace(':', '-')}-{chunk}"
        row = RowFile(self.folder / "rows" / f"{place}.safetensors", told)
        if row.done < len(windows.rows):
            engine = self.engine(recipe, chunk)
            try:
                measure(
                    engine, windows, base, row,
                    chunk=chunk, together=self.together, progress=self.progress, name=name,
                )  # fmt: skip
            finally:
                engine.close()
        return row_figures(recipe, row, self.shape, reference_figures(base)["ppl"])


def make_base(
    engine: Scorer,
    windows: Windows,
    path: Path,
    identity: dict[str, str],
    *,
    chunk: int,
    together: int = 1,
    progress: Progress,
) -> None:
    """Run the reference over all windows and keep its hidden states at `path`."""
    writer: BaseWriter | None = None
    n = 0
    while n < len(windows.rows):
        rows = windows.rows[n : n + together]
        states = torch.cat([part for _, part in engine.score_rows(rows, chunk=chunk)], 1)
        if writer is None:
            width, dtype = states.shape[2], states.dtype
            writer = BaseWriter(path, identity, len(windows.rows), windows.ctx, width, dtype)
            if writer.done > n:  # an earlier run was interrupted here
                n = writer.done
                continue
        for hidden, row in zip(states, rows, strict=True):
            told = _surprise(engine, hidden, row)
            writer.add(hidden, told.nll[:-1], told.entropy)
            n += 1
            progress("reference", n, len(windows.rows))
    assert writer is not None
    writer.finish()


def measure(
    engine: Scorer,
    windows: Windows,
    base: Base,
    row: RowFile,
    *,
    chunk: int,
    together: int = 1,
    progress: Progress,
    name: str,
) -> None:
    """Run a candidate over the windows that `row` does not have yet, and compare it with the base."""
    with row:
        while (first := row.done) < len(windows.rows):
            some = windows.rows[first : first + together]
            found: list[list[Divergence]] = [[] for _ in some]
            for start, states in engine.score_rows(some, chunk=chunk):
                for n, hidden in enumerate(states):
                    stop = start + len(hidden)
                    kept, targets = base.hidden(first + n, start, stop), _targets(some[n], start, stop)
                    found[n].append(_divergence(engine, kept, hidden, targets))
            for parts in found:
                row.add(
                    kld=torch.cat([p.kld for p in parts]),
                    same_top=torch.cat([p.same_top for p in parts]),
                    nll=torch.cat([p.nll for p in parts])[:-1],
                )
                progress(name, row.done, len(windows.rows))


def _targets(tokens: Sequence[int], start: int, stop: int) -> Tensor:
    """The tokens that follow rows [start, stop); 0 behind the last, where none follows."""
    return torch.tensor([*tokens[start + 1 : stop + 1], 0][: stop - start])


def _surprise(engine: Scorer, hidden: Tensor, tokens: Sequence[int]) -> Surprise:
    targets = _targets(tokens, 0, len(hidden)).to(hidden.device)
    parts = []
    for start, stop in _tiles(engine, hidden):
        parts.append(surprise(engine.head(hidden[start:stop]), targets[start:stop]))
    return Surprise(torch.cat([p.nll for p in parts]).cpu(), torch.cat([p.entropy for p in parts]).cpu())


def _divergence(engine: Scorer, kept: Tensor, hidden: Tensor, targets: Tensor) -> Divergence:
    kept, targets = kept.to(hidden.device), targets.to(hidden.device)
    parts = []
    for a, b in _tiles(engine, hidden):
        parts.append(divergence(engine.head(kept[a:b]), engine.head(hidden[a:b]), targets[a:b]))
    return Divergence(
        torch.cat([p.kld for p in parts]).cpu(),
        torch.cat([p.same_top for p in parts]).cpu(),
        torch.cat([p.nll for p in parts]).cpu(),
    )


def _tiles(engine: Scorer, hidden: Tensor) -> list[tuple[int, int]]:
    return list(tiles(len(hidden), engine.head(hidden[:1]).shape[1]))


def reference_figures(base: Base) -> dict[str, float]:
    """Mean entropy in nats, and perplexity, of the reference."""
    entropy, nll = base.entropy().double().mean(), base.nll().double().mean()
    return {"entropy": float(entropy), "ppl": float(nll.exp())}


def row_figures(recipe: Recipe, row: RowFile, shape: ModelShape, reference_ppl: float) -> dict[str, Any]:
    """One row of the table, and what it belongs to."""
    summary: Summary = summarise(row)
    return {
        "k": recipe.k,
        "v": recipe.v,
        "target": recipe.pair,
        "layers": recipe.layers,
        "bits_per_value": bits_per_value(recipe, shape),
        "bytes_per_token": bytes_per_token(recipe, shape),
        **summary.figures,
        "ppl_ratio": summary.figures["ppl"] / reference_ppl,
        "block_kld": summary.blocks,
        "values": str(row.path.name),
    }
