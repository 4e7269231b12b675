"""How fast whole prompts are read, up to the first token, against Transformers.

    python -m benchmarks.prompts [--shapes qwen3-8b,...] [--tokens N] [--no-peer] [--out FILE]

Models of known shapes with random weights, bfloat16; a prompt of random tokens, batch 1. Ours: the engine,
its own chunk and others; every step from the request on. Transformers: SDPA attention and a dynamic cache,
the prompt in one pass and in chunks, logits of the last token alone. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache, Gemma3TextConfig, LlamaConfig, Qwen3Config
from transformers.configuration_utils import PreTrainedConfig

from benchmarks.decode import drop
from benchmarks.shapes import EIGHT_B, SMALL, as_loaded
from benchmarks.where import where
from octavo import Engine, Recipe, Sampling
from octavo.model.load import LoadedModel

ROUNDS = 3
SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3-8b": lambda: Qwen3Config(**EIGHT_B),
    "smollm2-135m": lambda: LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152, max_position_embeddings=131072, tie_word_embeddings=True,
    ),
    "gemma3-270m": lambda: Gemma3TextConfig(
        hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, vocab_size=262144, sliding_window=512,
        max_position_embeddings=131072, query_pre_attn_scalar=256,
    ),
    "small": lambda: Qwen3Config(**SMALL),
}  # fmt: skip


def build(config: PreTrainedConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def best_ms(run: Callable[[], None]) -> float:
    """Of ROUNDS, after one to warm up."""
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:]) * 1e3


def ours(loaded: LoadedModel, tokens: int, pair: str, chunk: int | None) -> dict[str, object]:
    """Milliseconds of a prompt of `tokens` new tokens; graphs and `compile` have no part in it."""
    engine = Engine(
        loaded, Recipe.from_pair(pair), memory="40GB", context=tokens + 64, chunk=chunk, max_sequences=2
    )

    def run() -> None:
        prompt = torch.randint(0, engine.shape.vocab, (tokens,)).tolist()
        engine.submit(prompt, Sampling(max_tokens=1, ignore_eos=True))
        while not engine.idle:
            engine.step()

    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ms = best_ms(run)
    extra = torch.cuda.max_memory_allocated() - before
    found = {"chunk": engine.stats().chunk, "default": chunk is None, "extra_bytes": extra}
    drop(engine)
    return {"by": "octavo", "pair": pair, **found, "ms": ms}


def theirs(module: torch.nn.Module, tokens: int, chunk: int) -> dict[str, object]:
    """Milliseconds of the same in Transformers."""

    def run() -> None:
        cache = DynamicCache(config=module.config)
        ids = torch.randint(0, module.config.vocab_size, (1, tokens), device="cuda")
        for at in range(0, tokens, chunk):
            given = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
            logits = module(ids[:, at : at + chunk], **given).logits
        logits.argmax(-1).item()

    module.set_attn_implementation("sdpa")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ms = best_ms(run)
    extra = torch.cuda.max_memory_allocated() - before
    return {"by": "transformers", "chunk": chunk, "extra_bytes": extra, "ms": ms}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="qwen3-8b,smollm2-135m,gemma3-270m", help=", ".join(SHAPES))
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--no-peer", action="store_true", help="leave Transformers out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    rows: list[dict[str, object]] = []
    for shape in options.shapes.split(","):
        module = build(SHAPES[shape]())
        loaded = as_loaded(module)
        runs = [("turbo4", None), ("turbo4", 2048), ("turbo4", 512), ("plain", None), ("q8_0:q4_0", None)]
        jobs: list[Callable[[], dict[str, object]]] = [
            partial(ours, loaded, options.tokens, pair, chunk) for pair, chunk in runs
        ]
        if not options.no_peer:
            chunks = (options.tokens, 8192, 2048)
            jobs += [partial(theirs, module, options.tokens, chunk) for chunk in chunks]
        for job in jobs:
            row = {"shape": shape, "tokens": options.tokens, **job()}
            row["tokens_per_s"] = round(options.tokens / row["ms"] * 1e3)  # type: ignore[operator]
            rows.append(row)
            print(json.dumps(row), flush=True)
        del module, loaded, jobs
        gc.collect()
        torch.cuda.empty_cache()
    result = where() | {"command": "python -m benchmarks.prompts", "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
