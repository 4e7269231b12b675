"""What recipes cost in quality on real models: KLD, equivalence and RULER, as `octavo eval` measures them.

    python -m benchmarks.quality MODEL --text FILE --jobs kld,kld-all,needle,vt --out results.json

MODEL is what `octavo run` takes, a converted folder too. Needs no network, no matplotlib and no command line:
it runs where only torch, transformers and safetensors are. Results are written after every format, and the
same --scratch goes on where a run was cut off. On a GPU run windows --together. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from octavo.evaluation.answers import EngineAnswerer
from octavo.evaluation.equivalence import run_equivalence
from octavo.evaluation.identity import version
from octavo.evaluation.kld import KldRun
from octavo.evaluation.log import SampleLog
from octavo.evaluation.present_kld import kld_document
from octavo.evaluation.report import plain_data
from octavo.evaluation.ruler import Fitter, Prompter, Sources, get_tasks
from octavo.evaluation.ruler.run import RulerRun
from octavo.evaluation.setup import open_bench
from octavo.evaluation.windows import Text, cut, read_text
from octavo.recipe import Recipe

Cell = dict[str, Any]

SERVED = [{"rotate": rotate, "recent": recent} for rotate in (True, False) for recent in (0, 64)]
QUANTISED: list[dict[str, Any]] = [
    {"centre": False, "exact_pages": 0, "rotate": True},
    {"centre": False, "exact_pages": 0, "rotate": False},
    {"centre": True, "exact_pages": 0},
    {"centre": True, "exact_pages": 1},
]


def kld(options: argparse.Namespace, text: Text, *, quantised: bool) -> Iterator[Cell]:
    """A cell for every context, setting and format; each context has one reference."""
    bench = open_bench(options.model, device=options.device, dtype=options.dtype, all_quantised=quantised)
    chunk, side = options.chunk if quantised else 64, options.together
    identity = {
        "model": bench.loaded.identity,
        "tokenizer": text.tokens_sha256,
        "text": text.sha256,
        "version": version(),
        "dtype": bench.loaded.shape.dtype,
    }
    for ctx in options.ctx:
        windows = cut(text, ctx, tokens=max(options.tokens, ctx))
        base = options.scratch / f"base-{text.name}-{ctx}-{chunk}.safetensors"
        for n, pair in product(options.settings, options.formats.split(",")):
            settings = (QUANTISED if quantised else SERVED)[n]
            run = KldRun(
                engine=lambda recipe, step, most=ctx: bench.engine(
                    recipe, tokens=side * most, chunk=side * step, sequences=side
                ),
                identity=identity,
                recipes=[Recipe.from_pair(pair, **settings, sliding=quantised)],
                shape=bench.loaded.shape,
                folder=options.scratch / f"kld-{text.name}-{'aq' if quantised else 'served'}-{n}",
                chunk=chunk,
                noise_chunk=chunk // 2 if quantised else 2 * chunk,
                together=side,
                progress=say,
            )
            result = run.run(windows, base)
            told = {"job": "kld-all" if quantised else "kld", "settings": settings, "text": text.name}
            blocks = [row["block_kld"] for row in result.rows]
            yield {**told, "block_kld": blocks, **kld_document([result])}


def ruler(options: argparse.Namespace, task: str) -> Iterator[Cell]:
    """Scores of one task at every length and pair."""
    bench = open_bench(options.model, device=options.device, dtype=options.dtype)
    tokenizer = bench.loaded.tokenizer
    tasks = get_tasks([task], Sources(essay=options.text), lambda t: len(tokenizer.encode(t, special=False)))
    for pair in options.pairs.split(","):
        recipe = Recipe.from_pair(pair)
        for length in options.lengths:
            run = RulerRun(tasks, [length], options.samples, Prompter(tokenizer), progress=say)
            told = {"model": bench.loaded.identity, "recipe": asdict(recipe), "version": version()}
            log = SampleLog(options.scratch / f"{task}-{length}-{pair.replace(':', '-')}.jsonl", told)
            batch, chunk = options.batch, options.chunk
            with bench.engine(recipe, tokens=batch * length, chunk=chunk, sequences=batch) as engine:
                [cell] = run.run(EngineAnswerer(engine, batch=batch), log, pair)
            yield {"job": task, **cell.as_row()}


def equivalence(options: argparse.Namespace) -> Iterator[Cell]:
    """Short greedy answers to needle prompts, against plain pages."""
    bench = open_bench(options.model, device=options.device, dtype=options.dtype)
    [task] = get_tasks(["niah_single_1"], Sources(), len)
    for length in options.lengths:
        fitter = Fitter(task, Prompter(bench.loaded.tokenizer), length)
        samples = list(fitter.samples(options.samples))
        for pair in options.pairs.split(","):
            recipes = Recipe.from_pair("plain"), Recipe.from_pair(pair)
            plain, candidate = (bench.engine(recipe, tokens=length + 64) for recipe in recipes)
            with plain, candidate:
                result = run_equivalence(plain, candidate, samples, pair)
            yield {"job": "equivalence", "length": length, **result.as_row()}


def say(what: str, done: int, total: int) -> None:
    """One line as each part ends."""
    if done == total:
        print(f"{time.strftime('%H:%M:%S')} {what} {done}/{total}", flush=True)


def jobs(options: argparse.Namespace) -> dict[str, Callable[[], Iterator[Cell]]]:
    """Every job by name."""

    def text() -> Text:
        from octavo.evaluation.setup import load_tokenizer

        return read_text(options.text, load_tokenizer(options.model))

    return {
        "kld": lambda: kld(options, text(), quantised=False),
        "kld-all": lambda: kld(options, text(), quantised=True),
        "needle": lambda: ruler(options, "niah_single_1"),
        "vt": lambda: ruler(options, "vt"),
        "equivalence": lambda: equivalence(options),
    }


def parse() -> argparse.Namespace:
    """The command line."""

    def numbers(value: str) -> list[int]:
        return [int(part) for part in value.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--jobs", default="kld-all,kld,needle,vt,equivalence")
    parser.add_argument("--ctx", type=numbers, default=[2048])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--chunk", type=int, default=512, help="tokens a step; as served it is 64")
    parser.add_argument("--together", type=int, default=1, help="windows side by side")
    parser.add_argument("--settings", type=numbers, default=[0, 1, 2, 3], help="which of the four settings")
    parser.add_argument("--formats", default="plain,q8_0,q8_0:q4_0,q4_0")
    parser.add_argument("--pairs", default="plain,q8_0:q4_0")
    parser.add_argument("--lengths", type=numbers, default=[1024, 2048, 4096, 8192])
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--scratch", type=Path, default=Path("quality-scratch"))
    parser.add_argument("--out", type=Path, default=Path("quality.json"))
    return parser.parse_args()


def main() -> None:
    options = parse()
    started, known = time.monotonic(), jobs(options)
    bench = open_bench(options.model, device=options.device, dtype=options.dtype)
    document: dict[str, Any] = {"setup": bench.setup(text=str(options.text)), "cells": []}
    for name in options.jobs.split(","):
        for cell in known[name]():
            document["cells"].append(cell)
            document["seconds"] = round(time.monotonic() - started)
            options.out.write_text(json.dumps(plain_data(document), indent=1) + "\n")
            shown = {k: v for k, v in cell.items() if k not in ("contexts", "block_kld")}
            print(json.dumps(plain_data(shown)), flush=True)
    print(json.dumps({"benchmark": "quality", "cells": len(document["cells"]), "out": str(options.out)}))


if __name__ == "__main__":
    main()
