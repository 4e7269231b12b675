"""The decode kernels against float64 attention on the same bytes (needs a GPU)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.kernels.variants import KERNEL_FORMATS

from .cases import Shape, measure

pytestmark = pytest.mark.gpu

INT8 = 1.5e-2
"""Relative error that int8 queries and probabilities may have on Gaussian data."""
FLOAT = 3e-3
"""The same of 16-bit arithmetic."""

QUANTISED = [f for f in KERNEL_FORMATS if f != "plain"]
EDGES = (1, 63, 64, 65, 700, 4095)
SHAPES = {
    "edges": Shape(lengths=EDGES),
    "drafts": Shape(lengths=(65, 700, 4095), queries=4),
    "one head": Shape(group=1, kv_heads=4, lengths=EDGES),
    "group of 16": Shape(group=16, lengths=(130, 4095)),
    "group of 5": Shape(group=5, lengths=(130, 4095), queries=2),
    "more rows than a tile": Shape(group=8, lengths=(4095,), queries=7),
    "shared": Shape(lengths=(1500, 1500, 1437, 900), shared=12),
    "many share": Shape(lengths=(1300,) * 12, shared=16),
    "window": Shape(lengths=(65, 700, 4095), queries=3, window=256),
    "softcap": Shape(lengths=(700,), softcap=20.0),
    "sinks": Shape(lengths=(1, 700), sinks=True),
    "head_dim 64": Shape(head_dim=64, lengths=(65, 4095)),
    "head_dim 256": Shape(head_dim=256, lengths=(65, 4095)),
    "head_dim 512": Shape(head_dim=512, kv_heads=1, lengths=(65, 2000)),
    "head_dim 256, 16 rows": Shape(head_dim=256, lengths=(65, 2000), queries=4),
    "head_dim 512, 16 rows": Shape(head_dim=512, kv_heads=1, lengths=(65, 2000), queries=4),
    "not centred": Shape(centred=False, lengths=(65, 4095)),
    "f16": Shape(dtype=torch.float16, lengths=(65, 4095)),
}


def tolerance(shape: Shape) -> float:
    return FLOAT if shape.k == shape.v == "plain" or {shape.k, shape.v} <= {"plain", "q8_0", "turbo8"} else INT8


@pytest.mark.parametrize("format", KERNEL_FORMATS)
@pytest.mark.parametrize("queries", [1, 4])
def test_every_format_at_every_edge(format: str, queries: int) -> None:
    shape = Shape(format, format, lengths=(1, 63, 64, 65, 700, 4095), queries=1 if queries == 1 else queries)
    shape = replace(shape, lengths=tuple(n for n in shape.lengths if n >= queries))
    assert measure(shape) < tolerance(shape)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("format", ["turbo4", "q4_0", "turbo3_tcq", "turbo8"])
def test_every_shape(name: str, format: str) -> None:
    shape = replace(SHAPES[name], k=format, v=format)
    assert measure(shape) < tolerance(shape)


@pytest.mark.parametrize(
    "pair", ["q8_0:q4_0", "turbo8:turbo3", "turbo4:plain", "plain:turbo4", "q5_1:turbo2_tcq", "turbo4_tcq:turbo3_tcq"]
)
@pytest.mark.parametrize("queries", [1, 4])
def test_pairs(pair: str, queries: int) -> None:
    k, v = pair.split(":")
    shape = Shape(k, v, lengths=(65, 2000), queries=queries)
    assert measure(shape) < tolerance(shape)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("k", QUANTISED)
@pytest.mark.parametrize("v", QUANTISED)
def test_every_pair(k: str, v: str, head_dim: int) -> None:
    shape = Shape(k, v, head_dim=head_dim, lengths=(65, 2000))
    assert measure(shape) < tolerance(shape)


def test_a_scale_one_percent_off_is_noticed() -> None:
    shape = Shape("turbo8", "turbo8", lengths=(700,))
    assert measure(shape) < FLOAT < measure(shape, spoil=1.01)
