"""Speed and size of recipes at growing contexts, from the engine's own clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from octavo.engine.engine import Engine
from octavo.engine.requests import Sampling
from octavo.recipe import Recipe

__all__ = ["Rung", "Timing", "climb", "time_once"]


@dataclass(frozen=True)
class Timing:
    """One run: tokens a second, and the most bytes that pages took."""

    prefill: float
    decode: float
    kv_bytes: int


@dataclass
class Rung:
    """One recipe at one context, timed several times."""

    ctx: int
    recipe: Recipe
    timings: list[Timing] = field(default_factory=list)

    def as_row(self, plain: Rung) -> dict[str, Any]:
        """Medians, and the ratio to plain pages timed in the same alternation."""
        decode = median(t.decode for t in self.timings)
        return {
            "ctx": self.ctx,
            "k": self.recipe.k,
            "v": self.recipe.v,
            "target": self.recipe.pair,
            "prefill_tokens_per_s": median(t.prefill for t in self.timings),
            "decode_tokens_per_s": decode,
            "decode_ratio": decode / median(t.decode for t in plain.timings),
            "kv_bytes": max(t.kv_bytes for t in self.timings),
            "runs": len(self.timings),
        }


def time_once(engine: Engine, prompt: Sequence[int], max_tokens: int) -> Timing:
    """Prefill `prompt` and decode `max_tokens` on a fresh engine, alone."""
    engine.generate([list(prompt)], Sampling(max_tokens=max_tokens, ignore_eos=True))
    stats = engine.stats()
    return Timing(stats.tokens_per_s["prefill"], stats.tokens_per_s["decode"], stats.bytes["peak"])


def climb(
    make: Callable[[Recipe], Engine],
    recipes: Sequence[Recipe],
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int = 32,
    repeats: int = 3,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[dict[str, Any]]:
    """Rows for every prompt (one a context) and recipe; recipes alternate (A B A B), so drift hits all alike.

    Plain pages are always timed too; they are the denominator of the ratios.
    """
    plain = recipes[0].with_(k="plain", v="plain")
    others = [r for r in recipes if r != plain]
    rows = []
    for prompt in prompts:
        rungs = [Rung(len(prompt), recipe) for recipe in (plain, *others)]
        for turn in range(repeats):
            for rung in rungs:
                with make(rung.recipe) as engine:
                    rung.timings.append(time_once(engine, prompt, max_tokens))
            progress(f"timing {len(prompt)} tokens", turn + 1, repeats)
        rows += [rung.as_row(rungs[0]) for rung in rungs]
    return rows
