"""A hash of a model's weights that does not depend on the precision they run in."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

__all__ = ["weights_digest"]

_SAMPLES = 64


def weights_digest(module: nn.Module) -> str:
    """Of names, shapes and samples of all weights, the samples rounded to bfloat16: the same in float32 and
    bfloat16. (Weights that came in float32 round otherwise by way of float16.)"""
    digest = hashlib.sha256(type(module).__name__.encode())
    for name, weight in sorted(module.named_parameters()):
        flat = weight.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLES)][: _SAMPLES + 1]
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(sample.to(torch.bfloat16).float().cpu().numpy().tobytes())
    return digest.hexdigest()[:24]
