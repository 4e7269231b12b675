"""What a step's rows go through in PyTorch on their way into attention: the bands' rotations of queries, then
equalisation and rotation as a layer's recipe asks, once, for all its pages."""

from __future__ import annotations

import torch

from octavo.pages.bands import Turns
from octavo.pages.store import GroupPool

__all__ = ["band_queries", "rotate", "turn_back", "turn_rows"]


def band_queries(q: torch.Tensor, turns: Turns) -> torch.Tensor:
    """q [T, H, D] → [bands · T, H, D]: as they are, then turned on for each further band, in float32."""
    for band in range(turns.bands):
        turns.counts[band] += (turns.reach >= band).sum()
    if turns.cos is None or turns.sin is None or turns.partner is None:
        return q.repeat(turns.bands, 1, 1)
    sets, other = [q.float()], q.float().index_select(-1, turns.partner)
    for cos, sin in zip(turns.cos[: turns.bands - 1], turns.sin, strict=False):
        sets.append(sets[0] * cos[:, None] + other * sin[:, None])
    return torch.cat(sets)


def turn_rows(
    pool: GroupPool, n: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [T, H, D], k and v [T, G, D] as layer n of the group stores and reads them, in v's dtype."""
    if (scale := pool.scales[n]) is not None:
        q, k = equalise(q, k, scale)
    if (turn := pool.rotations["k"][n]) is not None:
        q, k = rotate(q, turn), rotate(k, turn)
    q, k = q.to(v.dtype), k.to(v.dtype)
    turn = pool.rotations["v"][n]
    return q, k, v if turn is None else rotate(v, turn)


def turn_back(pool: GroupPool, n: int, out: torch.Tensor) -> torch.Tensor:
    """The inverse for attention's output."""
    turn = pool.rotations["v"][n]
    return out if turn is None else rotate(out, turn.T)


def equalise(q: torch.Tensor, k: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k [T, G, D] times and q [T, H, D] divided by scale [G, D], float32: scores stay what they were."""
    t, h, d = q.shape
    heads = q.float().reshape(t, len(scale), h // len(scale), d) / scale[:, None]
    return heads.reshape(t, h, d), k.float() * scale


def rotate(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] times an orthonormal [D, D], computed in float32, in x's dtype."""
    return (x.float() @ by).to(x.dtype)
