"""The rotation that spreads outliers over the channels before they are quantised.

Per block of channels: signs, fast Walsh-Hadamard transform, 1/sqrt(n), signs (QuIP#, arXiv 2402.04396,
section 3). Orthonormal, so rotated queries and keys keep their products and outputs rotate back.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["random_signs", "rotation_block", "rotation_matrix"]


def rotation_block(head_dim: int) -> int:
    """Channels that are mixed with one another: the largest power of two up to 128 that divides head_dim."""
    return min(128, head_dim & -head_dim)


def random_signs(head_dim: int, which: str) -> Tensor:
    """+1 or -1 for each channel: float32 [D], the same on every machine for ever."""
    digest = hashlib.shake_256(f"octavo rotation {which}".encode()).digest(-(-head_dim // 8))
    bits = torch.tensor([byte >> i & 1 for byte in digest for i in range(8)])
    return 1.0 - 2.0 * bits[:head_dim].float()


def hadamard(n: int) -> Tensor:
    """The n × n matrix of ±1 with orthogonal rows, n a power of two (Sylvester's construction)."""
    h = torch.ones(1, 1)
    while len(h) < n:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    return h


def rotation_matrix(head_dim: int) -> Tensor:
    """R, orthonormal float32 [D, D]: x @ R rotates rows, y @ R.T rotates back."""
    n = rotation_block(head_dim)
    blocks = torch.kron(torch.eye(head_dim // n), hadamard(n) / n**0.5)
    return random_signs(head_dim, "in")[:, None] * blocks * random_signs(head_dim, "out")
