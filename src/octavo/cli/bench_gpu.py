"""`octavo bench kernels|decode|prefill|memory`: the GPU benchmarks of the source tree."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click

from octavo.errors import InvalidRequest

__all__ = ["decode", "kernels", "memory", "prefill"]

ROOT = Path(__file__).parents[3]


def command_for(name: str, about: str) -> click.Command:
    """A verb that hands its arguments to `benchmarks/<name>.py`, whose last line is JSON."""

    @click.command(
        name=name,
        help=f"{about} Runs benchmarks/{name}.py of a source checkout on a CUDA device; "
        "`-- --help` lists its options.",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def run(arguments: tuple[str, ...]) -> None:
        if not (ROOT / "benchmarks" / f"{name}.py").exists():
            raise InvalidRequest(f"benchmarks/{name}.py is not installed; run this from a source checkout")
        if not set(arguments) & {"-h", "--help"}:
            require_cuda()
        sys.path.insert(0, str(ROOT))
        import_module(f"benchmarks.{name}").main(list(arguments))

    return run


def require_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise InvalidRequest(
            "PyTorch sees no CUDA device; these benchmarks measure GPU kernels. Try `bench fanout`"
        )


kernels = command_for("kernels", "Decode attention of every format against 16-bit attention.")
decode = command_for("decode", "Decode speed of an 8 B model against its roofline.")
prefill = command_for("prefill", "A chunk's attention over packed pages against SDPA on dense ones.")
memory = command_for("memory", "Memory of a long prefill beyond model and pages.")
