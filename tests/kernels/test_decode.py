"""The decode kernels against float64 attention on the same bytes (needs a GPU)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.kernels.variants import KERNEL_FORMATS, Variant, choose

from .cases import Shape, measure
from .pools import compile_all

pytestmark = pytest.mark.gpu

INT8 = 1.5e-2
"""Relative error that int8 queries and probabilities may have on Gaussian data: q4_0 has 0.0156 where almost
all pages are packed, and four times less beside a sequence of 65 tokens, whose pages are plain and whose
values average to more."""
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


PAIRS = (
    "q8_0:q4_0",
    "turbo8:turbo3",
    "turbo4:plain",
    "plain:turbo4",
    "q5_1:turbo2_tcq",
    "turbo4_tcq:turbo3_tcq",
)
FOR_SHAPES = ("turbo4", "q4_0", "turbo3_tcq", "turbo8")


def of_format(k: str, v: str, queries: int) -> Shape:
    return Shape(k, v, lengths=tuple(n for n in EDGES if n >= queries), queries=queries)


def of_name(name: str, format: str) -> Shape:
    return replace(SHAPES[name], k=format, v=format)


CASES = {
    **{f"{f} {q}": of_format(f, f, q) for f in KERNEL_FORMATS for q in (1, 4)},
    **{f"{p} {q}": of_format(*p.split(":"), q) for p in PAIRS for q in (1, 4)},
    **{f"{n}, {f}": of_name(n, f) for n in SHAPES for f in FOR_SHAPES},
}


def variant(shape: Shape) -> Variant:
    """What decode chooses for the shape: as many rows in a tile as its readers fill."""
    rows = min(16, shape.group * shape.queries * (len(shape.lengths) if shape.shared else 1))
    centred, half = shape.centred and shape.k != "plain", shape.dtype == torch.float16
    return choose(
        shape.k, shape.v, shape.head_dim, rows, centred=centred, softcap=shape.softcap > 0, half=half
    )


@pytest.fixture(scope="module")
def compiled() -> None:
    """The variants of all cases, compiled side by side."""
    compile_all([("decode.cu", v.defines()) for v in {variant(shape) for shape in CASES.values()}])


def tolerance(shape: Shape) -> float:
    return FLOAT if {shape.k, shape.v} <= {"plain", "q8_0", "turbo8"} else INT8


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_float64_on_the_same_bytes(name: str, compiled: None) -> None:
    assert measure(CASES[name]) < tolerance(CASES[name])


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
