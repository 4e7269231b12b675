"""A tiny model as the measurements take it, and a text it can be measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from octavo.engine.engine import Engine
from octavo.engine.requests import Sampling
from octavo.evaluation.kld import KldRun
from octavo.evaluation.setup import Bench
from octavo.evaluation.windows import Text, Windows, cut
from octavo.model.load import LoadedModel
from octavo.recipe import Recipe
from tests.tiny import tiny_loaded

SEED, SHARP = 2, 2.0


@cache
def loaded(sharpness: float = SHARP) -> LoadedModel:
    """A random model; a `sharpness` above 1 makes its predictions less flat.

    The seed is one of those whose top tokens seldom lie so near that q8_0 swaps them.
    """
    model = tiny_loaded("llama", SEED)
    with torch.no_grad():
        model.module.get_output_embeddings().weight.mul_(sharpness)  # type: ignore[operator]
    return replace(model, identity=f"{model.identity}*{sharpness}")


@cache
def said() -> tuple[int, ...]:
    """Tokens that the model itself would say, so that its perplexity on them is low."""
    start = [10, 200, 30, 77]
    sampling = Sampling(max_tokens=384, temperature=0.8, seed=0, ignore_eos=True)
    with Bench(loaded()).engine(Recipe.from_pair("plain"), tokens=512) as engine:
        return engine.generate([start], sampling)[0].tokens


def windows(ctx: int = 192, count: int = 2) -> Windows:
    """Windows of what the model said."""
    return cut(Text("said.txt", "text-0", said(), ()), ctx, tokens=ctx * count)


def kld_run(folder: Path, pairs: str = "q8_0,q4_0", **changes: Any) -> KldRun:
    """A run over the tiny model; `changes` replace fields of KldRun, or settings of the recipes."""
    fields = {name: changes.pop(name) for name in list(changes) if name in KldRun.__dataclass_fields__}
    model: LoadedModel = changes.pop("model", None) or loaded()
    all_quantised = changes.pop("all_quantised", False)
    bench = Bench(model, all_quantised)
    make: Callable[[Recipe, int], Engine] = lambda recipe, chunk: bench.engine(  # noqa: E731
        recipe, tokens=512, chunk=chunk
    )
    recipes = [Recipe.from_pair(pair, **{"recent": 0, **changes}) for pair in pairs.split(",")]
    identity = {"model": model.identity, "text": "text-0", "tokenizer": "bytes", "version": "test"}
    base = {"engine": make, "identity": identity, "recipes": recipes, "shape": model.shape, "folder": folder}
    return KldRun(**{**base, **fields})
