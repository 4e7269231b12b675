"""The kernels around the decode kernel compile for every head dim and dtype, and do what PyTorch does."""

from __future__ import annotations

import pytest
import torch

from octavo.attention.turn import equalise
from octavo.formats.rotation import rotation_matrix
from octavo.kernels.append import append_defines, append_rows, turn_back
from octavo.kernels.blend import blend, blend_defines
from octavo.kernels.compile import KernelsUnavailable, compile_kernel
from octavo.kernels.product import product_defines

pytest.importorskip("cuda.core", reason="cuda-core compiles the kernels")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_append_and_blend_compile(head_dim: int, half: bool) -> None:
    for source, defines in (("append.cu", append_defines), ("blend.cu", blend_defines)):
        assert compile_kernel(source, dict(defines(head_dim, half)), "sm_90")[:4] == b"\x7fELF"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_products_compile(arch: str) -> None:
    assert compile_kernel("product.cu", dict(product_defines()), arch)[:4] == b"\x7fELF"


def test_what_the_compiler_refuses_is_said() -> None:
    with pytest.raises(KernelsUnavailable, match=r"NVRTC refused blend\.cu"):
        compile_kernel("blend.cu", {"HALF": 0}, "sm_90")


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(64, torch.float16), (128, torch.bfloat16), (256, torch.bfloat16)]
)
@pytest.mark.parametrize(("turn_k", "turn_v"), [(True, True), (True, False), (False, False)])
def test_rows_are_stored_as_pytorch_turns_them(
    head_dim: int, dtype: torch.dtype, turn_k: bool, turn_v: bool, scaled: bool
) -> None:
    torch.manual_seed(0)
    tokens, heads, kv_heads = 5, 6, 2
    wide = torch.randn(tokens, heads + 2 * kv_heads, head_dim).to(dtype)
    q, k, v = wide.split((heads, kv_heads, kv_heads), 1)  # strided, as a fused projection leaves them
    pages = [torch.full((4, kv_heads, 64, head_dim), 7.0, dtype=dtype) for _ in range(2)]
    slots = torch.tensor([3, 3, 0, 1, 1])
    offsets = torch.tensor([62, 63, 0, 5, 6])
    scales = 0.5 + torch.rand(kv_heads, head_dim) if scaled else None
    settings = {"turn_k": turn_k, "turn_v": turn_v, "scales": scales, "keep": True}
    turned = append_rows(q, k, v, *pages, slots, offsets, **settings)

    by = rotation_matrix(head_dim).to(q.device)
    want = [x.float() for x in (q, k, v)]
    if scales is not None:
        want[:2] = equalise(q, k, scales)
    want = [x @ by if turn else x for x, turn in zip(want, (turn_k, turn_k, turn_v), strict=True)]
    for got, exact in zip(turned, want, strict=True):
        close(got, exact)
    for page, row in zip(pages, turned[1:], strict=True):
        assert torch.equal(page[slots, :, offsets], row)
        page[slots, :, offsets] = 7.0
        assert bool((page == 7.0).all()), "a slot that is nobody's was written"
    if turn_v:  # rounded between the two turns, of which the second spreads each rounding over its row
        error = turn_back(turned[2].clone()).float() - v.float()
        assert bool((error.norm(dim=-1) <= torch.finfo(dtype).eps * v.float().norm(dim=-1)).all())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(64, torch.float16), (128, torch.bfloat16), (512, torch.float16)]
)
def test_parts_blend_to_the_softmax_of_all(head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads, rows = 3, 7
    acc = torch.zeros(heads, rows, head_dim)
    lse = torch.full((heads, rows), float("-inf"))
    parts = torch.randn(4, rows, heads, head_dim).to(dtype).transpose(1, 2)  # as attention returns
    sums = 3 * torch.randn(4, heads, rows)
    sums[1, :, 2] = float("-inf")  # a part in which a row saw nothing
    for part, part_lse in zip(parts, sums, strict=True):
        blend(acc, lse, part, part_lse)
    assert torch.allclose(lse, sums.logsumexp(0), atol=1e-4)
    want = (parts.float() * sums.softmax(0)[..., None]).sum(0)
    assert torch.allclose(acc, want, atol=1e-4)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for the rounding to 16 bits."""
    step = torch.finfo(got.dtype).eps
    assert bool(((got.float() - want).abs() <= step * want.abs() + step * 1e-2).all())
