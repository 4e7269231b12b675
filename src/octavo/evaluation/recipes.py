"""Making a recipe for a model from a text: most of its windows choose, the rest judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from octavo.errors import InvalidRequest
from octavo.evaluation.budget import best_uniform, check_budget, fit_budget, probe_layers
from octavo.evaluation.calibrate import Statistics, choose_scales, collect
from octavo.evaluation.identity import version
from octavo.evaluation.judge import Judge
from octavo.evaluation.setup import Bench
from octavo.evaluation.sizes import bits_per_value
from octavo.evaluation.windows import Windows
from octavo.model.digest import weights_digest
from octavo.model.pairs import rope_partners
from octavo.recipe import ModelFacts, Recipe, RecipeFile

__all__ = ["Made", "make_recipe_file"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Made:
    """A recipe file that is ready to be written, and how it fared.

    kld         mean KLD in nats by what was measured: "kld" of the recipe, others to compare it with
    """

    file: RecipeFile
    kld: dict[str, float]
    kld_tokens: int
    bits: float

    @property
    def warnings(self) -> list[str]:
        """Where what was chosen does no better than what it replaces."""
        own = self.kld["kld"]
        return [
            f"{name.removeprefix('kld_').replace('_', ' ')}: a KLD of {kld:.5f} nats, with {own:.5f}; "
            "what was chosen does not pay here"
            for name, kld in self.kld.items()
            if name != "kld" and kld <= own
        ]

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        recipe = self.file.recipe
        told = {"pair": recipe.pair, "layers": recipe.layers, "bits_per_value": self.bits}
        return {**told, "kld": self.kld, "kld_tokens": self.kld_tokens, "warnings": self.warnings}


@dataclass(frozen=True)
class Chosen:
    """A recipe, and the simpler ones that it must beat, by name."""

    recipe: Recipe
    rivals: dict[str, Recipe]
    statistics: Statistics


def make_recipe_file(
    bench: Bench,
    recipe: Recipe,
    windows: Windows,
    *,
    scales: bool = False,
    budget: float | None = None,
    progress: Progress = lambda *_: None,
) -> Made:
    """A file of `recipe`, with `scales` of its keys, and formats for `budget` bits a value, as asked.

    The last quarter of the windows (at least one) only judges. `bench` should quantise all tokens.
    """
    recipe.check(bench.loaded.shape, bench.loaded.name)
    bench.dual_chunk(recipe, windows.ctx)
    if budget is not None:
        check_budget(recipe, bench.loaded.shape, budget)
    choosing, judging = split(windows)
    chosen = choose(bench, recipe, choosing, scales, budget, progress)
    judge, kld = make_judge(bench, judging), {}
    for n, (name, one) in enumerate({"kld": chosen.recipe, **chosen.rivals}.items(), 1):
        kld[name] = judge.kld(one)
        progress("judging", n, 1 + len(chosen.rivals))
    loaded, bits = bench.loaded, bits_per_value(chosen.recipe, bench.loaded.shape)
    told = {**kld, "kld_tokens": judge.tokens, "bits_per_value": round(bits, 4), "dtype": loaded.shape.dtype}
    facts = ModelFacts.of(loaded.shape, loaded.name, weights_digest(loaded.module))
    file = RecipeFile(
        chosen.recipe.with_(model=facts),
        evidence(choosing, chosen.statistics, told),
        chosen.statistics.tensors(),
    )
    return Made(file, kld, judge.tokens, bits)


def choose(
    bench: Bench,
    recipe: Recipe,
    windows: Windows,
    scales: bool,
    budget: float | None,
    progress: Progress,
) -> Chosen:
    """What these windows say the recipe should be."""
    module, shape = bench.loaded.module, bench.loaded.shape
    rivals: dict[str, Recipe] = {}
    with bench.engine(Recipe(k="plain", v="plain"), tokens=windows.ctx) as engine:
        statistics = collect(engine, windows, progress)
    if scales:
        recipe = recipe.with_(scales=choose_scales(statistics, rope_partners(module, shape)))
    if budget is not None:
        found = probe_layers(make_judge(bench, windows), recipe, shape, progress)
        rivals["kld_one_pair_for_all_layers"] = best_uniform(found, recipe, shape, budget)
        recipe = fit_budget(found, recipe, shape, budget)
    if scales:
        rivals["kld_without_scales"] = recipe.with_(scales=None)
    return Chosen(recipe, rivals, statistics)


def evidence(windows: Windows, statistics: Statistics, told: dict[str, Any]) -> dict[str, Any]:
    """What justified a recipe, KLD to four digits."""
    rounded = {n: float(f"{value:.4g}") if n.startswith("kld") else value for n, value in told.items()}
    return {
        "text": windows.text.name,
        "text_sha256": windows.text.sha256,
        "tokens": statistics.tokens,
        "ctx": windows.ctx,
        **rounded,
        "kld_tokens": told["kld_tokens"],
        "octavo": version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def split(windows: Windows) -> tuple[Windows, Windows]:
    """The windows that choose and those that judge."""
    count = len(windows.rows)
    if count < 2:
        raise InvalidRequest(
            f"the text has one window of {windows.ctx} tokens, and one to judge by is needed beside it; "
            "give a longer text, more --tokens or a smaller --ctx"
        )
    last = max(1, count // 4)
    return replace(windows, rows=windows.rows[:-last]), replace(windows, rows=windows.rows[-last:])


def make_judge(bench: Bench, windows: Windows) -> Judge:
    return Judge(lambda recipe: bench.engine(recipe, tokens=windows.ctx), windows.rows)
