"""Products of one row on the GPU against float64."""

from __future__ import annotations

import pytest
import torch

from octavo.kernels.product import row_products, takes

pytestmark = pytest.mark.gpu

SHAPES = [
    (4096, (4096, 1024, 1024)),
    (12288, (4096,)),
    (4096, (777, 5)),
    (2880, (201, 3, 2, 1)),
    (1000, (64,)),
    (8, (3, 2, 1, 9)),
    (16384, (33,)),
]


@pytest.mark.parametrize(("depth", "rows"), SHAPES)
def test_products_are_exact_up_to_rounding(depth: int, rows: tuple[int, ...]) -> None:
    x = torch.randn(1, depth, device="cuda").bfloat16()
    weights = [torch.randn(n, depth, device="cuda").bfloat16() for n in rows]
    assert all(takes(x, w) for w in weights)
    right = torch.cat([x.double() @ w.double().T for w in weights], 1)
    for _ in range(2):
        out = row_products(x, weights).double()
        assert float((out - right).norm() / right.norm()) < 3e-3


def test_a_row_may_begin_anywhere() -> None:
    x = torch.randn(1, 4099, device="cuda").bfloat16()[:, 3:]
    weight = torch.randn(64, 4096, device="cuda").bfloat16()
    right = x.double() @ weight.double().T
    assert float((row_products(x, [weight]).double() - right).norm() / right.norm()) < 3e-3


def test_a_perturbed_weight_is_noticed() -> None:
    x = torch.randn(1, 4096, device="cuda").bfloat16()
    weight = torch.randn(512, 4096, device="cuda").bfloat16()
    right = x.double() @ weight.double().T
    weight[:, 4088:] *= 1.2
    assert float((row_products(x, [weight]).double() - right).norm() / right.norm()) > 3e-3


def test_what_the_kernel_does_not_take() -> None:
    weight = torch.randn(64, 4096, device="cuda").bfloat16()
    row = torch.randn(1, 4096, device="cuda").bfloat16()
    assert takes(row, weight)
    assert not takes(row.repeat(2, 1), weight)
    assert not takes(row.half(), weight.half())
    assert not takes(row[:, :4], weight[:, :4].contiguous())
    assert not takes(row, weight.T.contiguous().T)
