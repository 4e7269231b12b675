"""The dense part of a decode step of one sequence: products of one row, and torch.compile's settings.

    python -m benchmarks.dense [--layers 6] [--settings "default;ours, pdl"] [--out FILE]

Layers have the shape of Qwen3-8B's, each with weights of its own, so that no cache helps. Products are
checked against float64 first. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.decode import agrees, drop, make, read_bandwidth
from benchmarks.shapes import EIGHT_B, as_loaded, pretend, random_model
from benchmarks.where import where
from octavo.engine import compiled
from octavo.kernels.product import row_products

LAYER = {
    "queries, keys, values": [(4096, 4096), (1024, 4096), (1024, 4096)],
    "out": [(4096, 4096)],
    "gate, up": [(12288, 4096), (12288, 4096)],
    "down": [(4096, 12288)],
}
"""Weights [N, K] that multiply the same row."""

SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "default": dict,
    "pdl": lambda: {"triton.enable_pdl": True},
    "coordinate descent": lambda: {"coordinate_descent_tuning": True},
    "ours": lambda: {"post_grad_custom_pre_pass": compiled.RowProducts()},
    "ours, pdl": lambda: {"post_grad_custom_pre_pass": compiled.RowProducts(), "triton.enable_pdl": True},
}
"""Options of torch.compile by name; "ours, pdl" is what `compile` uses."""

Multiply = Callable[[torch.Tensor, list[torch.Tensor]], object]


def replay_ms(work: Callable[[], object], times: int = 20) -> float:
    """Milliseconds of one replay of `work` as a CUDA graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return timed(graph.replay, times)


def timed(work: Callable[[], object], times: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / times


def check() -> float:
    """The largest relative error of the products of a layer."""
    worst = 0.0
    for shapes in LAYER.values():
        x, weights = draw(1, shapes[0][1]), [draw(*shape) for shape in shapes]
        right = torch.cat([x.double() @ w.double().T for w in weights], 1)
        worst = max(worst, float((row_products(x, weights) - right).norm() / right.norm()))
    return worst


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def products(layers: int) -> list[dict[str, Any]]:
    """Microseconds a layer by our kernel and by cuBLAS, product by product and all in turn."""
    weights = {name: [[draw(*s) for s in shapes] for _ in range(layers)] for name, shapes in LAYER.items()}
    rows = {name: draw(1, shapes[0][1]) for name, shapes in LAYER.items()}

    def apart(x: torch.Tensor, together: list[torch.Tensor]) -> None:
        for weight in together:
            torch.nn.functional.linear(x, weight)

    found = []
    for names in [*([name] for name in LAYER), list(LAYER)]:
        size = sum(w.nbytes for name in names for layer in weights[name] for w in layer)
        row: dict[str, Any] = {"name": names[0] if len(names) == 1 else "a layer", "bytes": size}
        for way, multiply in (("ours", row_products), ("cublas", apart)):
            ms = replay_ms(lambda names=names, by=multiply: in_turn(by, rows, weights, names, layers))
            row |= {f"{way}_us": ms / layers * 1e3, f"{way}_bytes_per_s": size / ms * 1e3}
        found.append(row)
    return found


def in_turn(
    multiply: Multiply,
    rows: dict[str, torch.Tensor],
    weights: dict[str, list[list[torch.Tensor]]],
    names: list[str],
    layers: int,
) -> None:
    for n in range(layers):
        for name in names:
            multiply(rows[name], weights[name][n])


def step(module: torch.nn.Module, options: dict[str, Any]) -> dict[str, float]:
    """One sequence of 4,096 tokens, turbo4: seconds to compile and capture, milliseconds of the graph alone
    and of a whole step of the engine."""
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "compile_dense", lambda m: torch.compile(m, options=options or None))
        engine = make(as_loaded(module), "turbo4", "3GB", 8192, compile=True)
    pretend(engine, 1, 4096, 400)
    began = time.perf_counter()
    gap = agrees(engine)
    made = time.perf_counter() - began
    (graph,) = engine._core.graphs._graphs.values()
    graph_ms = timed(graph.graph.replay, 30)
    for _ in range(5):
        engine.step()
    began = time.perf_counter()
    for _ in range(30):
        engine.step()
    step_ms = (time.perf_counter() - began) / 30 * 1e3
    del graph
    drop(engine)
    return {"made_s": made, "graph_ms": graph_ms, "step_ms": step_ms, "against_eager": gap}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--settings", default="default;ours, pdl", help="separated by semicolons")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    result: dict[str, Any] = where() | {"command": "python -m benchmarks.dense", "layers": options.layers}
    result |= {"read_bytes_per_s": read_bandwidth(), "worst_error": check()}
    assert result["worst_error"] < 3e-3, f"products are off by {result['worst_error']:.2e}"
    result["products"] = products(options.layers)
    for row in result["products"]:
        print(json.dumps(row), flush=True)
    gc.collect()
    module = random_model(EIGHT_B | {"num_hidden_layers": options.layers}, "cuda", torch.bfloat16)
    result["settings"] = {}
    for name in options.settings.split(";"):
        result["settings"][name] = step(module, SETTINGS[name]())
        print(name, json.dumps(result["settings"][name]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
