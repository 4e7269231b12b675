"""The rotation turns, mixes, and never changes between machines."""

from __future__ import annotations

import hashlib

import pytest
import torch

from octavo.formats import PageCodec, get_format, rotation_matrix
from octavo.formats.rotation import rotation_block

from .pages import HEAD_DIMS, gaussian, relative_error

BLOCKS = {16: 16, 64: 64, 80: 16, 96: 32, 112: 16, 128: 128, 192: 64, 256: 128, 512: 128}


@pytest.mark.parametrize("head_dim", BLOCKS)
def test_it_is_orthonormal_and_mixes_whole_blocks_only(head_dim: int) -> None:
    r, n = rotation_matrix(head_dim), BLOCKS[head_dim]
    assert rotation_block(head_dim) == n
    assert torch.allclose(r @ r.T, torch.eye(head_dim), atol=1e-6)
    inside = torch.kron(torch.eye(head_dim // n), torch.ones(n, n)).bool()
    assert torch.allclose(r[inside].abs(), torch.full((head_dim * n,), n**-0.5))
    assert (r[~inside] == 0).all()


def test_signs_are_the_same_for_ever() -> None:
    signs = torch.cat([rotation_matrix(d).flatten().sign().to(torch.int8) for d in HEAD_DIMS])
    digest = hashlib.sha256(signs.numpy().tobytes()).hexdigest()
    assert digest[:16] == "8e42c12c2500e5c4"


@pytest.mark.parametrize("name", ["q4_0", "turbo4", "turbo3_tcq"])
def test_it_helps_where_a_few_channels_are_loud(name: str) -> None:
    x = gaussian(4, 128)
    x[..., ::40] *= 15
    codec, r = PageCodec(get_format(name), 128, "k"), rotation_matrix(128)
    rotated = codec.decode(codec.encode(x @ r)) @ r.T
    quiet = torch.arange(128) % 40 != 0
    assert relative_error(x[..., quiet], rotated[..., quiet]) < relative_error(
        x[..., quiet], codec.decode(codec.encode(x))[..., quiet]
    )
