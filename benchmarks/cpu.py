"""Speed on a CPU against Transformers: prefill and decode at 1,000 tokens, and four sequences against one.

    python -m benchmarks.cpu [--rounds 4] [--pair q8_0:q8_0]

A model of SmolLM2-135M's shape with random weights, float32; both sides in one process, in turns. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.shapes import as_loaded
from benchmarks.where import where
from octavo import Engine, Recipe, Sampling

SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
LENGTH, NEW = 1000, 24


def make_model(attention: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(**SMOLLM2)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()


def theirs(module: torch.nn.Module, prompt: list[int]) -> tuple[float, float]:
    """Seconds of prefill, and of each further token."""
    module.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    began = time.perf_counter()
    module.generate(ids, max_new_tokens=1, do_sample=False)
    first = time.perf_counter() - began
    module.generate(ids, max_new_tokens=NEW + 1, do_sample=False)
    return first, (time.perf_counter() - began - 2 * first) / NEW


def ours(engine: Engine, prompt: list[int], count: int) -> tuple[float, float]:
    """Seconds of prefill per sequence, and of each decode step of all `count`, which share nothing."""
    rules = Sampling(max_tokens=NEW + 1, ignore_eos=True)
    for _ in range(count):
        engine.submit([random.randrange(49000), *prompt[1:]], rules)
    scheduler = engine._core.scheduler
    began = time.perf_counter()
    while scheduler.waiting or any(s.generated == 0 for s in scheduler.running):
        engine.step()
    prefilled, steps = time.perf_counter(), 0
    while not engine.idle:
        engine.step()
        steps += 1
    return (prefilled - began) / count, (time.perf_counter() - prefilled) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pair", default="q8_0:q8_0")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    prompt = torch.randint(0, 49000, (LENGTH,)).tolist()
    peer = make_model("sdpa")
    engine = Engine(as_loaded(make_model("eager")), Recipe.from_pair(options.pair), memory="1GB")
    rounds = []
    for _ in range(options.rounds + 1):
        a, b, c = theirs(peer, prompt), ours(engine, prompt, 1), ours(engine, prompt, 4)
        rounds.append({"prefill": a[0] / b[0], "decode": a[1] / b[1], "four_against_one": 4 * b[1] / c[1]})
        print(json.dumps(rounds[-1]), flush=True)
    medians = {name: statistics.median(r[name] for r in rounds[1:]) for name in rounds[0]}
    print(json.dumps(where() | {"command": "python -m benchmarks.cpu", "pair": options.pair} | medians))


if __name__ == "__main__":
    main()
