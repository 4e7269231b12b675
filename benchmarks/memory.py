"""Memory that a long prefill takes beyond the model and its pages: an 8 B model, the last 2,048 tokens of a
prompt.

    python -m benchmarks.memory [--length 262080] [--pair turbo4] [--memory 14GB] [--small]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks.decode import prefill_memory
from benchmarks.shapes import EIGHT_B, SMALL, as_loaded, random_model
from benchmarks.where import where


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="octavo bench memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=262080)
    parser.add_argument("--pair", default="turbo4")
    parser.add_argument("--memory", default="14GB")
    parser.add_argument("--small", action="store_true", help="a small model, to try the script")
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    loaded = as_loaded(random_model(SMALL if options.small else EIGHT_B, "cuda", torch.bfloat16))
    found = prefill_memory(loaded, options.length, options.pair, options.memory)
    command = {"command": "python -m benchmarks.memory", "pair": options.pair}
    print(json.dumps(where() | command | found))


if __name__ == "__main__":
    main()
