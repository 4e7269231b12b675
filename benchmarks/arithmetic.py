"""What the decode kernel's int8 arithmetic adds to a format's own loss, end to end on a real model.

    python -m benchmarks.arithmetic MODEL --text FILE --dtype float16 --out arithmetic.json

Two engines step through the same windows, --step tokens at a time: one reads its pages with the GPU kernels,
the other with the reference attention on the same GPU. Before every step the second gets the first one's
pages, byte for byte, so that they differ in arithmetic alone. Both are compared with plain pages under the
reference attention, and with each other; logits are made in float32. KLD in nats a token; `added` is the
kernels' mean KLD less the reference attention's. The row "plain" is the noise: nothing is quantised there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.attention.backend import Backend, TorchBackend
from octavo.attention.cuda import SHORT, CudaBackend
from octavo.engine.core import Core
from octavo.engine.memory import Memory
from octavo.engine.requests import Sampling
from octavo.engine.scheduler import Grant
from octavo.engine.sequence import Sequence
from octavo.evaluation.divergence import divergence, tiles
from octavo.evaluation.setup import open_bench
from octavo.evaluation.sizes import bits_per_value, pool_bytes
from octavo.evaluation.windows import cut, read_text
from octavo.kernels.seal import seal_pages
from octavo.model.load import LoadedModel
from octavo.recipe import Recipe

PREFILL = 64
COMPARED = [("plain", "reference"), ("plain", "kernels"), ("reference", "kernels")]


class Run:
    """The windows as sequences of a core of their own, all at the same token."""

    def __init__(self, loaded: LoadedModel, recipe: Recipe, backend: Backend, rows: list[list[int]]) -> None:
        device, count, tokens = backend.device, len(rows), len(rows) * len(rows[0])
        sizes: dict[str, Any] = {"sequences": count, "chunk": count * PREFILL}
        room = pool_bytes(loaded.shape, tokens, count * PREFILL)
        memory = Memory.build(loaded.shape, recipe, backend, device, loaded.identity, room, **sizes)
        self.core = Core(
            loaded, recipe, backend, memory,
            max_sequences=count, max_waiting=1, all_quantised=False, compile=False,
            context=len(rows[0]),
        )  # fmt: skip
        self.sequences = [
            Sequence(n, row, len(row), len(row), Sampling(), memory.ledger.new())
            for n, row in enumerate(rows)
        ]

    def step(self, n: int) -> Tensor:
        """Final hidden states [windows, n, hidden] of the next n tokens."""
        ledger, grants = self.core.memory.ledger, [Grant(s, n) for s in self.sequences]
        for s in self.sequences:
            ledger.extend(s.holding, s.computed + n)
        batch = self.core.batch(grants, all_rows=True)
        hidden = self.core.runner.hidden(batch)
        return hidden.view(len(grants), n, -1)

    def settle(self, n: int, *, seal: bool = True) -> None:
        """The step's tokens are stored; pages old enough get packed addresses and, with `seal`, bytes."""
        moves = []
        for s in self.sequences:
            s.computed += n
            moves += self.core.memory.ledger.settle(s.holding, s.tokens, s.computed, share=False)
        if seal:
            self.core.memory.seal(moves)

    def skip(self, n: int) -> None:
        """As if n tokens had been stored."""
        for s in self.sequences:
            self.core.memory.ledger.extend(s.holding, s.computed + n)
        self.settle(n, seal=False)

    def take_pages(self, other: Run) -> None:
        """The other's pages, all bytes."""
        for mine, theirs in zip(self.core.memory.pools, other.core.memory.pools, strict=True):
            mine.k_plain.copy_(theirs.k_plain)
            mine.v_plain.copy_(theirs.v_plain)
            for side, tensors in mine.packed.items():
                for own, found in zip(tensors, theirs.packed[side], strict=True):
                    own.copy_(found)


def reference(device: torch.device) -> TorchBackend:
    """The reference attention, over pages in the kernels' byte order."""
    backend = TorchBackend(device, "compared with")
    backend.layout, backend.sealer = "tile", seal_pages
    return backend


class Judge:
    """Sums of KLD over tokens, by what is compared; logits from hidden states in float32."""

    def __init__(self, loaded: LoadedModel) -> None:
        head: Any = loaded.module.get_output_embeddings()  # type: ignore[operator]
        self.weight = head.weight.detach().float()
        self.sums: dict[tuple[str, str], float] = {}
        self.tokens = 0

    def see(self, hidden: dict[str, Tensor], pairs: list[tuple[str, str]]) -> None:
        """hidden [n, hidden] of one stretch of tokens by name, and which are compared."""
        count = len(next(iter(hidden.values())))
        for a, b in tiles(count, len(self.weight)):
            logits = {name: states[a:b].float() @ self.weight.T for name, states in hidden.items()}
            none = torch.zeros(b - a, dtype=torch.long, device=self.weight.device)
            for p, q in pairs:
                found = divergence(logits[p], logits[q], none)
                self.sums[p, q] = self.sums.get((p, q), 0.0) + float(found.kld.double().sum())
        self.tokens += count


def plain_states(loaded: LoadedModel, device: torch.device, rows: list[list[int]]) -> Tensor:
    """Hidden states [windows, ctx, hidden] with plain pages under the reference attention."""
    run, states = Run(loaded, Recipe.from_pair("plain"), reference(device), rows), []
    for _ in range(0, len(rows[0]), PREFILL):
        states.append(run.step(PREFILL))
        run.settle(PREFILL)
    return torch.cat(states, 1)


def measure(
    loaded: LoadedModel,
    device: torch.device,
    recipe: Recipe,
    rows: list[list[int]],
    plain: Tensor,
    options: Any,
) -> dict[str, Any]:
    """One recipe's row: `skip` tokens are only stored, the others compared."""
    kernels = Run(loaded, recipe, CudaBackend(device, "measured"), rows)
    other, judge = Run(loaded, recipe, reference(device), rows), Judge(loaded)
    for _ in range(0, options.skip, PREFILL):
        kernels.step(PREFILL)
        kernels.settle(PREFILL)
        other.skip(PREFILL)
    for start in range(options.skip, len(rows[0]), options.step):
        other.take_pages(kernels)
        found = {"reference": other.step(options.step), "kernels": kernels.step(options.step)}
        found["plain"] = plain[:, start : start + options.step]
        flat = {name: states.flatten(0, 1) for name, states in found.items()}
        judge.see(flat, COMPARED)
        kernels.settle(options.step)
        other.settle(options.step, seal=False)
    own, theirs, between = (judge.sums[pair] / judge.tokens for pair in COMPARED)
    return {
        "target": recipe.pair,
        "bits_per_value": bits_per_value(recipe, loaded.shape),
        "tokens": judge.tokens,
        "kld_reference": own,
        "kld_kernels": theirs,
        "added": theirs - own,
        "added_share": (theirs - own) / own if own else None,
        "kld_between": between,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--skip", type=int, default=1024, help="tokens of a window that are only stored")
    parser.add_argument("--step", type=int, default=SHORT)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--formats", default="plain,q8_0,turbo8,q4_0,turbo4,turbo3,turbo4_tcq,turbo3_tcq")
    parser.add_argument("--out", type=Path, default=Path("arithmetic.json"))
    return parser.parse_args()


def main() -> None:
    options = parse()
    bench, started = open_bench(options.model, device="cuda", dtype=options.dtype), time.monotonic()
    text = read_text(options.text, bench.loaded.tokenizer)
    rows = [list(row) for row in cut(text, options.ctx, tokens=options.windows * options.ctx).rows]
    plain = plain_states(bench.loaded, bench.device, rows)
    if not bool(plain.isfinite().all()):
        raise SystemExit(f"hidden states are not finite in {options.dtype}; take bfloat16")
    told = {name: getattr(options, name) for name in ("ctx", "skip", "step")}
    document: dict[str, Any] = {
        "benchmark": "arithmetic",
        "setup": bench.setup(text=text.name, **told),
        "rows": [],
    }
    for pair in options.formats.split(","):
        document["rows"].append(
            measure(bench.loaded, bench.device, Recipe.from_pair(pair), rows, plain, options)
        )
        document["seconds"] = round(time.monotonic() - started)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
        print(json.dumps(document["rows"][-1]), flush=True)
    print(json.dumps({"benchmark": "arithmetic", "rows": len(document["rows"]), "out": str(options.out)}))


if __name__ == "__main__":
    main()
