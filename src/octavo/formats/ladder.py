"""The ladder: what each format stores and what it loses, measured once and kept for the usual head dims.

`python -m octavo.formats.ladder` measures anew. Tests hold the kept figures against fresh measurements.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from octavo.formats.base import PAGE
from octavo.formats.codec import PageCodec
from octavo.formats.registry import format_names, get_format

__all__ = ["HEAD_DIMS", "Rung", "ladder", "measure_mse"]

HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256, 512)
"""Head dims the figures are kept for."""

MEASURED = Path(__file__).parent / "tables" / "measured.json"

VALUES = 20_000 * 128
FEWER_VALUES = 400_000
"""What other head dims are measured on when they are asked for: a second or two, and 1 % of the error."""


class Rung(NamedTuple):
    """bits_per_value counts every stored byte; mse is over the power of unit Gaussian values."""

    name: str
    bits_per_value: float
    mse: float
    use: str


def ladder(head_dim: int = 128) -> list[Rung]:
    """Every format at `head_dim`; mse as it was measured there, or is now where none is kept.

    Raises InvalidRequest for a head dim that cannot be packed.
    """
    mse = measured().get(str(head_dim)) or measured_now(head_dim)
    formats = [get_format(name) for name in format_names()]
    return [Rung(f.name, f.bits_per_value(head_dim), mse.get(f.name, 0.0), f.use) for f in formats]


@cache
def measured() -> dict[str, dict[str, float]]:
    """The kept figures: head dim → quantised format → mse."""
    figures: dict[str, dict[str, float]] = json.loads(MEASURED.read_text())
    return figures


@cache
def measured_now(head_dim: int) -> dict[str, float]:
    """The figures of any other head dim: quantised format → mse, to three digits."""
    names = [name for name in format_names() if get_format(name).quantised]
    return {name: float(f"{measure_mse(name, head_dim, values=FEWER_VALUES):.2e}") for name in names}


def measure_mse(name: str, head_dim: int, *, values: int = VALUES, seed: int = 0) -> float:
    """Mean squared error over power on unit Gaussian keys, gain rule "norm": at least `values` of them.

    Formats that are not quantised lose nothing of a model that runs in their dtype, and count as 0.
    """
    format = get_format(name)
    if not format.quantised:
        return 0.0
    pages = -(-values // (PAGE * head_dim))
    gaussian = np.random.RandomState(seed).standard_normal((pages, PAGE, head_dim)).astype(np.float32)
    codec, error, power = PageCodec(format, head_dim, "k"), 0.0, 0.0
    for x in torch.split(torch.from_numpy(gaussian), 64):
        error += float((x - codec.decode(codec.encode(x))).double().square().sum())
        power += float(x.double().square().sum())
    return error / power


def main() -> None:
    """Measure every quantised format at every head dim and keep the figures to four digits."""
    names = [name for name in format_names() if get_format(name).quantised]
    figures: dict[str, dict[str, float]] = {}
    for head_dim in HEAD_DIMS:
        figures[str(head_dim)] = {name: float(f"{measure_mse(name, head_dim):.3e}") for name in names}
        print(head_dim, figures[str(head_dim)], flush=True)
    MEASURED.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
