"""Decode speed of the whole engine on an 8 B model, against its roofline, its own 16-bit cache, and
Transformers.

    python -m benchmarks.decode [--small] [--one] [--no-peer] [--no-compile] [--out FILE]

Random weights and cache contents (speed does not depend on them; agreement with the reference is checked
first). The roofline is (bytes of weights + bytes of cache read) / measured read bandwidth. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import StaticCache

from benchmarks.shapes import EIGHT_B, SMALL, as_loaded, fill, pretend, random_model
from benchmarks.where import where
from octavo import Engine, Recipe
from octavo.attention.backend import TorchBackend
from octavo.engine.scheduler import Grant
from octavo.model.load import LoadedModel

STEPS = 40
Note = Callable[..., None]


def read_bandwidth() -> float:
    """Bytes a second of a plain read of 8 GiB, best of five."""
    data = torch.empty(2**33, dtype=torch.uint8, device="cuda").view(torch.int64)
    best = 0.0
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        data.amax()
        end.record()
        torch.cuda.synchronize()
        best = max(best, data.nbytes / start.elapsed_time(end) * 1e3)
    return best


def weight_bytes(module: torch.nn.Module) -> int:
    return sum(p.nbytes for n, p in module.named_parameters() if "embed_tokens" not in n)


def agrees(engine: Engine) -> float:
    """Largest relative difference of one decode step's logits from eager steps of the same engine."""
    core = engine._core
    grants = [Grant(s, 1) for s in core.scheduler.running]
    for grant in grants:
        core.memory.ledger.extend(grant.sequence.holding, grant.sequence.computed + 1)
    plain = core.runner.logits(core.batch(grants))
    fast = core._run(grants)
    return float((plain - fast).norm() / plain.norm())


def measure(engine: Engine, count: int, length: int) -> dict[str, float]:
    """Milliseconds a step for `count` sequences of `length` tokens, and the cache bytes each step reads."""
    pretend(engine, count, length, STEPS + 40)
    gap = agrees(engine)
    for _ in range(5):
        engine.step()
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    cache = engine._core.memory.live_bytes
    for id in list(engine._core.requests):
        engine.abort(id)
    engine.unread()
    return {
        "batch": count, "context": length, "ms": statistics.median(times) * 1e3, "kv_bytes": cache,
        "tokens_per_s": count / statistics.median(times), "graph_against_eager": gap,
    }  # fmt: skip


def make(loaded: object, pair: str, memory: str, context: int, **settings: object) -> Engine:
    engine = Engine(loaded, Recipe.from_pair(pair), memory=memory, context=context, chunk=512, **settings)
    for pool in engine._core.memory.pools:
        fill(pool)
    return engine


def prefill_memory(loaded: object, length: int, pair: str, memory: str) -> dict[str, float]:
    """Peak memory beyond model and pool, and milliseconds, of the last 2,048 tokens of a prefill of
    `length`."""
    engine = Engine(
        loaded, Recipe.from_pair(pair), memory=memory, context=length + 64, chunk=2048, max_sequences=1
    )
    for pool in engine._core.memory.pools:
        fill(pool)
    (sequence,) = pretend(engine, 1, length, 2, computed=length - 2048)
    sequence.prompt = length
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    engine.step()
    torch.cuda.synchronize()
    taken = time.perf_counter() - began
    extra = torch.cuda.max_memory_allocated() - before
    engine.close()
    return {"length": length, "chunk": 2048, "ms": taken * 1e3, "extra_bytes": extra}


def transformers_ms(module: torch.nn.Module, length: int) -> dict[str, float]:
    """Milliseconds a token of Transformers alone: a static cache of `length` tokens, the forward compiled as
    `generate` does it. The tokens stay on the device, which `generate` would read back."""
    began = time.perf_counter()
    torch._dynamo.reset()
    module.set_attn_implementation("sdpa")
    name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    cache = StaticCache(config=module.config, max_cache_len=length + STEPS + 16)
    ids = torch.ones(1, 1, dtype=torch.long, device=module.device)
    module(input_ids=ids, use_cache=True, **{name: cache})  # allocates the cache
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
        layer.cumulative_length.fill_(length)
    forward = torch.compile(module.forward, mode="reduce-overhead")

    def step(ids: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return forward(input_ids=ids, use_cache=True, **{name: cache}).logits[:, -1:].argmax(-1)

    for _ in range(10):
        ids = step(ids)
    ids.item()
    warm = time.perf_counter()
    for _ in range(STEPS):
        ids = step(ids)
    ids.item()
    end = time.perf_counter()
    return {"context": length, "ms": (end - warm) / STEPS * 1e3, "took_s": end - began}


def many_rows(loaded: LoadedModel, lengths: tuple[int, int], many: tuple[int, int], note: Note) -> None:
    """A batch against 16-bit pages, graphs without `compile`, and what a long prefill takes."""
    for pair in ("turbo4", "plain"):
        engine = make(
            loaded, pair, "30GB" if pair == "turbo4" else "90GB", many[1] + 1024, max_sequences=many[0]
        )
        assert not isinstance(engine._core.backend, TorchBackend), engine.stats().backend
        note(name="batch", pair=pair, **measure(engine, *many))
        if pair == "turbo4":
            note(name="batch 1, graph alone", pair=pair, **measure(engine, 1, lengths[0]))
        drop(engine)
        del engine
    note(
        name="prefill memory", pair="turbo4", **prefill_memory(loaded, 2 * lengths[1] - 64, "turbo4", "14GB")
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a small model, to try the script")
    parser.add_argument("--one", action="store_true", help="batch 1 alone")
    parser.add_argument("--no-peer", action="store_true", help="leave Transformers out")
    parser.add_argument("--no-compile", action="store_true", help="graphs alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    sizes, lengths, many = (
        (SMALL, (1024, 4096), (4, 1024)) if options.small else (EIGHT_B, (4096, 131072), (16, 32768))
    )
    result: dict[str, object] = where() | {"command": "python -m benchmarks.decode", "rows": []}
    rows: list[dict[str, object]] = result["rows"]  # type: ignore[assignment]

    def note(**row: object) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result))

    bandwidth = read_bandwidth()
    note(name="read bandwidth", bytes_per_s=bandwidth)
    module = random_model(sizes, "cuda", torch.bfloat16)
    weights = weight_bytes(module)
    loaded = as_loaded(module)
    note(name="weights", bytes=weights)
    if not options.one:
        many_rows(loaded, lengths, many, note)
    engine = make(loaded, "turbo4", "12GB", lengths[1] + 1024, compile=not options.no_compile)
    ours: dict[int, float] = {}
    for length in lengths:
        began = time.perf_counter()
        row = measure(engine, 1, length)
        roof = (weights + row["kv_bytes"]) / bandwidth * 1e3
        took = time.perf_counter() - began
        ratio = {"roofline_ms": roof, "of_roofline": roof / row["ms"], "took_s": took}
        note(name="batch 1, compiled", pair="turbo4", **row, **ratio)
        ours[length] = row["ms"]
    note(name="compile and capture", seconds=engine._core.graphs.capture_s)
    drop(engine)
    del engine
    if not options.no_peer:
        for length in lengths:
            peer = transformers_ms(module, length)
            gc.collect()
            torch.cuda.empty_cache()
            ratio = peer["ms"] / ours[length]
            note(name="transformers, static cache, compiled", **peer, ours_is_faster=ratio)
    print(json.dumps(result))


def drop(engine: Engine) -> None:
    """Give the engine's memory back."""
    engine.close()
    engine._core.graphs = engine._core.ahead = None
    engine._core.memory.pools.clear()
    engine._core.runner.attention.pools = []
    engine._core.runner.attention.layers = {}
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
