"""A hash of a model's weights that does not depend on the precision they run in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["samples", "weights_digest"]

_SAMPLES = 64


def weights_digest(module: nn.Module) -> str:
    """Of names, shapes and samples of all weights, the samples rounded to bfloat16: the same in float32 and
    bfloat16. (Weights that came in float32 round otherwise by way of float16.)"""
    digest = hashlib.sha256(type(module).__name__.encode())
    for name, weight in sorted(module.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        for sample in samples(weight):
            digest.update(sample.to(torch.bfloat16).float().cpu().numpy().tobytes())
    return digest.hexdigest()[:24]


def samples(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """Some 64 values [n] of a weight; of a quantised one that is made of several tensors, of each of them."""
    weight = weight.detach()
    if is_traceable_wrapper_subclass(weight):
        for part in weight.__tensor_flatten__()[0]:
            yield from samples(getattr(weight, part))
    else:
        flat = weight.reshape(-1)
        yield flat[:: max(1, flat.numel() // _SAMPLES)][: _SAMPLES + 1]
