"""What Dual Chunk Attention costs: decoding and prefill of an 8 B model far into a text, with it and without.

    python -m benchmarks.beyond [--small] [--compile] [--out FILE]

Random weights and cache contents: speed does not depend on them. Both ways run in one process, in turns, over
the same bytes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.decode import drop, measure
from benchmarks.shapes import EIGHT_B, SMALL, as_loaded, fill, pretend, random_model
from benchmarks.where import where
from octavo import Engine, Recipe
from octavo.model.load import LoadedModel

PREFILL = 2048
ROUNDS = 3


def make(loaded: LoadedModel, mode: str, length: int, **settings: object) -> Engine:
    recipe = Recipe.from_pair("turbo4", dca=mode)
    engine = Engine(
        loaded, recipe, memory="14GB", context=length + 1024, chunk=PREFILL, untrained=True, **settings
    )
    for pool in engine._core.memory.pools:
        fill(pool)
    return engine


def prefill_ms(engine: Engine, length: int) -> float:
    """Milliseconds of the last PREFILL tokens of a prompt of `length`."""
    times = []
    for _ in range(ROUNDS + 1):
        (sequence,) = pretend(engine, 1, length, 1, computed=length - PREFILL)
        sequence.prompt = length
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        for id in list(engine._core.requests):
            engine.abort(id)
        engine.unread()
    return statistics.median(times[1:]) * 1e3


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a small model, to try the script")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    sizes, length = (SMALL, 8192) if options.small else (EIGHT_B, 131072)
    loaded = as_loaded(random_model(sizes, "cuda", torch.bfloat16))
    loaded = replace(loaded, shape=replace(loaded.shape, context=length // 2))
    rows = []
    for mode in ("off", "on", "off", "on"):
        engine = make(loaded, mode, length, compile=options.compile)
        row = {"dca": mode, "length": length, "decode_ms": measure(engine, 1, length)["ms"]}
        row["prefill_ms"] = prefill_ms(engine, length)
        rows.append(row)
        print(json.dumps(row), flush=True)
        drop(engine)
        del engine
    costs = {}
    for name in ("decode_ms", "prefill_ms"):
        off, on = (min(r[name] for r in rows if r["dca"] == mode) for mode in ("off", "on"))
        costs[name.replace("_ms", "")] = on / off
    result = where() | {"command": "python -m benchmarks.beyond", "rows": rows, "on_over_off": costs}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
