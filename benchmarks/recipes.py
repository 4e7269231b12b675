"""Do recipes fitted to a model pay on text they never saw? Formats by layer, and channel scales of the keys.

    python -m benchmarks.recipes MODEL --fit FILE --judge FILE --out recipes.json

Everything is chosen on --fit and measured on --judge, every token quantised. Sizes are those of --sizes,
pairs of formats for all layers; against formats by layer of that size stands the pair that lost least on
--fit among all pairs no larger. KLD in nats a token against plain pages.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from octavo.evaluation.budget import FORMATS, fit_budget, probe_layers
from octavo.evaluation.calibrate import choose_scales, collect
from octavo.evaluation.judge import Judge
from octavo.evaluation.setup import Bench, open_bench
from octavo.evaluation.sizes import bits_per_value
from octavo.evaluation.windows import Windows, cut, read_text
from octavo.model.pairs import rope_partners
from octavo.recipe import Recipe

Cell = dict[str, Any]
START = Recipe(sliding=True)


def scales(bench: Bench, windows: Windows, other: Judge, options: argparse.Namespace) -> Iterator[Cell]:
    """With scales and without, by default and without centring."""
    with bench.engine(Recipe.from_pair("plain"), tokens=windows.ctx) as engine:
        statistics = collect(engine, windows)
    found = choose_scales(statistics, rope_partners(bench.loaded.module, bench.loaded.shape))
    for pair, centre in product(options.formats.split(","), (True, False)):
        recipe = Recipe.from_pair(pair, sliding=True, centre=centre)
        told = {"job": "scales", "pair": recipe.pair, "centre": centre}
        yield {**told, "without": other.kld(recipe), "ratio": other.kld(recipe.with_(scales=found))}


def layers(bench: Bench, judge: Judge, other: Judge, options: argparse.Namespace) -> Iterator[Cell]:
    """Formats by layer against the best pair of formats, at each size."""
    shape = bench.loaded.shape
    pairs = {f"{k}:{v}": START.with_(k=k, v=v) for k, v in product(FORMATS, FORMATS)}
    bits = {pair: bits_per_value(recipe, shape) for pair, recipe in pairs.items()}
    lost = {pair: judge.kld(recipe) for pair, recipe in pairs.items()}
    yield {"job": "pairs", "bits": bits, "kld_fit": lost}
    found = probe_layers(judge, START, shape)
    yield {"job": "probe", "layers": [[s.layer, s.side, s.kld] for s in found]}
    for size in options.sizes.split(","):
        most = bits[size]
        best = min((kld, pair) for pair, kld in lost.items() if bits[pair] <= most + 1e-9)[1]
        layered = fit_budget(found, START, shape, most)
        yield {
            "job": "layers",
            "budget": most,
            "pair": best,
            "pair_bits": bits[best],
            "pair_fit": lost[best],
            "pair_kld": other.kld(pairs[best]),
            "layers": layered.layers,
            "layers_usual": f"{layered.k}:{layered.v}",
            "layers_bits": bits_per_value(layered, shape),
            "layers_fit": judge.kld(layered),
            "layers_kld": other.kld(layered),
        }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--fit", type=Path, required=True)
    parser.add_argument("--judge", type=Path, required=True)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--formats", default="turbo4_tcq,turbo3_tcq")
    parser.add_argument(
        "--sizes",
        default="turbo3_tcq:turbo2_tcq,turbo3_tcq:turbo3_tcq,turbo4_tcq:turbo3_tcq,turbo4_tcq:turbo4_tcq,"
        "q6_0:turbo4_tcq",
    )
    parser.add_argument("--jobs", default="layers,scales")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("recipes.json"))
    return parser.parse_args()


def main() -> None:
    options, started = parse(), time.monotonic()
    bench = open_bench(options.model, device=options.device, dtype="float32", all_quantised=True)
    chosen, judged = (
        cut(read_text(path, bench.loaded.tokenizer), options.ctx, tokens=options.tokens)
        for path in (options.fit, options.judge)
    )
    judge, other = (
        Judge(
            lambda recipe: bench.engine(recipe, tokens=options.ctx, chunk=options.ctx),
            windows.rows,
            chunk=options.ctx,
        )
        for windows in (chosen, judged)
    )
    told = {"fit": chosen.text.name, "judge": judged.text.name, "ctx": options.ctx, "tokens": other.tokens}
    document: dict[str, Any] = {"benchmark": "recipes", "setup": bench.setup(**told), "cells": []}
    jobs = {
        "layers": lambda: layers(bench, judge, other, options),
        "scales": lambda: scales(bench, chosen, other, options),
    }
    for name in options.jobs.split(","):
        for cell in jobs[name]():
            document["cells"].append(cell)
            document["seconds"] = round(time.monotonic() - started)
            options.out.write_text(json.dumps(document, indent=1) + "\n")
            print(json.dumps(cell), flush=True)
    print(json.dumps({"benchmark": "recipes", "cells": len(document["cells"]), "out": str(options.out)}))


if __name__ == "__main__":
    main()
