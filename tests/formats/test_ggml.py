"""The ggml formats are what ggml says they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.formats import PAGE, PageCodec, get_format

from .pages import gaussian

gguf = pytest.importorskip("gguf")

ORACLES = ("q8_0", "q5_1", "q5_0", "q4_0")


def oracle(name: str, x: torch.Tensor) -> torch.Tensor:
    """x [N, S, D] through gguf's own quantize and dequantize."""
    from gguf.quants import dequantize, quantize

    kind = gguf.GGMLQuantizationType[name.upper()]
    return torch.from_numpy(dequantize(quantize(x.flatten(0, 1).numpy(), kind), kind)).view_as(x)


def written_q6_0(x: torch.Tensor) -> torch.Tensor:
    """The rule of q6_0, one block at a time: gguf has no oracle for it."""
    out = np.empty(x.numel(), np.float32)
    for i, block in enumerate(x.reshape(-1, 32).numpy()):
        d = block[np.abs(block).argmax()] / np.float32(-32)
        inverse = np.float32(0) if d == 0 else np.float32(1) / d
        codes = np.minimum(63, np.trunc(block * inverse + np.float32(32.5)))
        out[32 * i : 32 * i + 32] = (codes - 32).astype(np.float32) * np.float32(np.float16(d))
    return torch.from_numpy(out).view_as(x)


def tricky(head_dim: int) -> torch.Tensor:
    """Gaussians of many sizes, ties in |x|, halves, zeros, constants, one-sided blocks."""
    x = gaussian(6, head_dim, seed=3) * 10.0 ** torch.arange(-3, 3).view(6, 1, 1)
    x[0, 0] = 0
    x[0, 1] = 1.5
    x[0, 2] = -1.5
    x[0, 3, ::2] = x[0, 3, ::2].sign() * 7
    x[0, 4] = torch.arange(head_dim) / 2
    x[0, 5] = (torch.arange(head_dim) % 32 - 16) / 2
    x[0, 6] = x[0, 6].abs() + 100
    x[0, 7, 5] = 60000
    return x


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("name", [*ORACLES, "q6_0"])
def test_values_equal_the_oracle_bit_for_bit(name: str, head_dim: int) -> None:
    x = tricky(head_dim)
    codec = PageCodec(get_format(name), head_dim, "k")
    expected = written_q6_0(x) if name == "q6_0" else oracle(name, x)
    assert torch.equal(codec.decode(codec.encode(x)).view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("name", ORACLES)
def test_tile_pages_hold_the_same_values(name: str) -> None:
    x = tricky(128)
    codec = PageCodec(get_format(name), 128, "v", layout="tile")
    assert torch.equal(codec.decode(codec.encode(x)), oracle(name, x))


@pytest.mark.parametrize("head_dim", [80, 112])
@pytest.mark.parametrize("name", ORACLES)
def test_a_padded_block_reads_as_if_its_row_went_on_with_the_last_value(name: str, head_dim: int) -> None:
    x = gaussian(2, head_dim) + 5
    rest = -head_dim % 32
    longer = torch.cat((x, x[..., -1:].expand(-1, PAGE, rest)), -1).contiguous()
    codec = PageCodec(get_format(name), head_dim, "k")
    assert torch.equal(codec.decode(codec.encode(x)), oracle(name, longer)[..., :head_dim])
