"""A GPU writes and reads the same pages as the CPU."""

from __future__ import annotations

import pytest
import torch

from octavo.formats import PageCodec, get_format

from .pages import LAYOUTS, QUANTISED, exists, gaussian

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_pages_move_between_devices(name: str, layout: str, side: str, head_dim: int) -> None:
    if not exists(head_dim, layout):
        pytest.skip("no tiles")
    codec = PageCodec(get_format(name), head_dim, side, layout=layout, centred=side == "k")
    x = gaussian(4, head_dim)
    page = codec.encode(x)
    assert torch.equal(codec.decode(page.cuda()).cpu(), codec.decode(page))
    there = codec.encode(x.cuda()).cpu()
    # Sums are taken in another order there, so that a rare value falls on the other side of an edge.
    assert (there == page).float().mean() > 0.97
    assert (codec.decode(there) - codec.decode(page)).square().mean() < 1e-3
