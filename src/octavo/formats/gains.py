"""Gains: the fp16 factors stored beside codes."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.errors import unknown
from octavo.formats.base import PAGE, Layout

__all__ = ["GAIN_RULES", "fit_gain", "gain_span", "load_gains", "root_mean_square", "store_gains"]

GAIN_RULES = ("norm", "mmse", "unbiased")

LARGEST = 65504.0
"""The largest fp16 number; gains never become infinite."""


def gain_span(head_dim: int) -> int:
    """Channels that share a gain in the turbo formats: 128 where it divides head_dim, else the whole row."""
    return 128 if head_dim % 128 == 0 else head_dim


def fit_gain(x: Tensor, c: Tensor, rule: str) -> Tensor:
    """The factor g for which g * c stands for x, over the last axis: [..., 1].

    norm keeps the length of x, mmse minimises the squared error, unbiased makes <x, g c> = <x, x>.
    """
    if rule == "norm":
        return safe_ratio(x.norm(dim=-1, keepdim=True), c.norm(dim=-1, keepdim=True))
    xc = (x * c).sum(-1, keepdim=True)
    if rule == "mmse":
        return safe_ratio(xc, c.square().sum(-1, keepdim=True))
    if rule == "unbiased":
        return safe_ratio(x.square().sum(-1, keepdim=True), xc)
    raise unknown("gain rule", rule, GAIN_RULES)


def root_mean_square(x: Tensor) -> Tensor:
    """Over the last axis, [..., 1]; at least 1e-20, so that zeros stay zeros when divided by it."""
    return x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-20)


def safe_ratio(top: Tensor, bottom: Tensor) -> Tensor:
    """top / bottom, and 0 where bottom is 0 or the ratio is no number."""
    return torch.where(bottom > 0, top / bottom, 0.0).nan_to_num(0.0, LARGEST, 0.0).clamp(0.0, LARGEST)


def store_gains(gains: Tensor, layout: Layout) -> Tensor:
    """gains [N, S, B], B per token → fp16 bytes [N, 2 S B]; rows token by token, tile span by span."""
    if layout == "tile":
        gains = gains.transpose(1, 2)
    return gains.to(torch.float16).contiguous().flatten(1).view(torch.uint8)


def load_gains(data: Tensor, layout: Layout) -> Tensor:
    """Bytes of `store_gains` → float32 [N, S, B]."""
    gains = data.contiguous().view(torch.float16).float()
    if layout == "tile":
        return gains.view(len(data), -1, PAGE).transpose(1, 2)
    return gains.view(len(data), PAGE, -1)
