"""The ladder's columns brought together: quality first, then speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import InvalidRequest
from octavo.evaluation.answers import EngineAnswerer
from octavo.evaluation.identity import version
from octavo.evaluation.kld import KldRun
from octavo.evaluation.ladder import climb
from octavo.evaluation.log import SampleLog
from octavo.evaluation.ruler import Prompter, Sources, get_tasks
from octavo.evaluation.ruler.run import RulerRun
from octavo.evaluation.setup import Bench
from octavo.evaluation.windows import Text, Windows, cut
from octavo.recipe import Recipe
from octavo.recipe.dca import resolve_dca

__all__ = ["LadderRun"]

Found = dict[tuple[int, str], dict[str, Any]]


@dataclass(frozen=True)
class LadderRun:
    """Contexts × recipes on one model and text."""

    bench: Bench
    recipes: Sequence[Recipe]
    text: Text
    contexts: Sequence[int]
    folder: Path
    progress: Callable[[str, int, int], None]

    def run(
        self, *, kld_tokens: int, samples: int, max_tokens: int, repeats: int
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Why the run is invalid (then there are no rows), and a row for each context and recipe."""
        prompts = [self._prompt(ctx) for ctx in self.contexts]
        windows = [cut(self.text, ctx, tokens=max(kld_tokens, ctx)) for ctx in self.contexts if kld_tokens]
        ruler = self._ruler(samples) if samples else None
        invalid, quality = self._kld(windows)
        if invalid:
            return invalid, []
        needles = self._needles(ruler) if ruler else {}
        rows = climb(
            lambda recipe: self.bench.engine(recipe, tokens=max(self.contexts) + max_tokens),
            self.recipes,
            prompts,
            max_tokens=max_tokens,
            repeats=repeats,
            progress=self.progress,
        )
        return [], [{**row, **_of(quality, row), **_of(needles, row)} for row in rows]

    def _prompt(self, ctx: int) -> list[int]:
        tokens = [*self.text.prefix, *self.text.tokens][:ctx]
        if len(tokens) < ctx:
            raise InvalidRequest(
                f"{self.text.name} has {len(tokens):,} tokens, fewer than context {ctx:,}; give a longer "
                "text or smaller --contexts"
            )
        return tokens

    def _kld(self, windows: Sequence[Windows]) -> tuple[list[str], Found]:
        identity = {"model": self.bench.loaded.identity, "text": self.text.sha256, "version": version()}
        run = KldRun(
            engine=lambda recipe, chunk: self.bench.engine(recipe, tokens=max(self.contexts), chunk=chunk),
            identity=identity
            | {"tokenizer": self.text.tokens_sha256}
            | self.bench.attention(self.recipes[0], max(self.contexts)),
            recipes=self.recipes,
            shape=self.bench.loaded.shape,
            folder=self.folder,
            progress=self.progress,
        )
        found: Found = {}
        for each in windows:
            ctx, result = each.ctx, run.run(each)
            if not result.validity.valid:
                return [f"ctx {ctx}: {reason}" for reason in result.validity.reasons], {}
            for row in result.rows:
                figures = {"mean_kld": row["mean_kld"], "top1": row["top1"]}
                found[(ctx, row["target"])] = figures
        return [], found

    def _ruler(self, samples: int) -> RulerRun:
        """The needle prompts; a context that none fits in is refused before any work."""
        tokenizer = self.bench.loaded.tokenizer
        tasks = get_tasks(["niah_single_1"], Sources(), lambda text: len(text))
        run = RulerRun(tasks, self.contexts, samples, Prompter(tokenizer), progress=self.progress)
        run.check()
        return run

    def _needles(self, run: RulerRun) -> Found:
        found: Found = {}
        plain = self.recipes[0].with_(k="plain", v="plain")
        for recipe in dict.fromkeys((plain, *self.recipes)):
            name = recipe.pair.replace(":", "-")
            dca = resolve_dca(recipe, self.bench.loaded.shape.context, max(self.contexts))
            told = {"model": self.bench.loaded.identity, "recipe": repr(recipe), "version": version()}
            told |= {"dca": dca.identity} if dca else {}
            log = SampleLog(self.folder / f"samples-{name}.jsonl", told)
            with self.bench.engine(recipe, tokens=4 * max(self.contexts), sequences=4) as engine:
                cells = run.run(EngineAnswerer(engine, batch=4), log, recipe.pair)
            found |= {
                (c.length, recipe.pair): {"needle": c.measure.mean, "needle_n": len(c.scored)} for c in cells
            }
        return found


def _of(found: Found, row: dict[str, Any]) -> dict[str, Any]:
    return found.get((row["ctx"], row["target"]), {})
