"""The kernels around the decode kernel compile for every head dim and dtype; no GPU is needed for that."""

from __future__ import annotations

import pytest

from octavo.kernels.append import append_defines
from octavo.kernels.blend import blend_defines
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
