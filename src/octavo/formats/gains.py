"""Gains: the fp16 factors stored beside codes."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.errors import unknown
from octavo.formats.base import PAGE, Layout
from octavo.formats.tile import lane_tokens

__all__ = ["GAIN_RULES", "fit_gain", "gain_span", "load_gains", "root_mean_square", "store_gains"]

GAIN_RULES = ("norm", "mmse", "unbiased")

LARGEST = 65504.0
"""The largest fp16 number; gains never become infinite."""


def gain_span(head_dim: int) -> int:
    """Channels that share a gain in the turbo formats: 128 or 64 where it divides head_dim, else all."""
    return next((span for span in (128, 64) if head_dim % span == 0), head_dim)


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
    """top / bottom, at most LARGEST, and 0 where bottom is 0."""
    return torch.where(bottom > 0, top / bottom, 0.0).clamp(0.0, LARGEST)


def store_gains(gains: Tensor, layout: Layout) -> Tensor:
    """gains [N, S, B], B per token → fp16 bytes [N, 2 S B].

    rows token by token; tile span by span, in each the tokens by lane of the decode kernel (lane_tokens).
    """
    if layout == "tile":
        gains = gains[:, lane_tokens(gains.device)].transpose(1, 2)
    return gains.to(torch.float16).contiguous().flatten(1).view(torch.uint8)


def load_gains(data: Tensor, layout: Layout) -> Tensor:
    """Bytes of `store_gains` → float32 [N, S, B]."""
    gains = data.view(torch.float16).float()
    if layout == "tile":
        spans = gains.view(len(data), -1, PAGE).transpose(1, 2)
        return torch.empty_like(spans).index_copy_(1, lane_tokens(data.device), spans)
    return gains.view(len(data), PAGE, -1)
