"""Which backend reads the pages, and why."""

from __future__ import annotations

import torch

from octavo.attention.backend import Backend, TorchBackend
from octavo.errors import UnsupportedModel
from octavo.formats.registry import get_format
from octavo.kernels.compile import unavailable
from octavo.kernels.variants import covers
from octavo.model.shape import ModelShape
from octavo.recipe import Recipe

__all__ = ["choose_backend"]


def choose_backend(
    device: torch.device, shape: ModelShape, recipe: Recipe, *, strict: bool = False
) -> Backend:
    """The fastest backend that can serve this model and recipe on `device`.

    On a GPU that the kernels cannot serve, the reference attention runs there and says why; with `strict`
    that is an error instead.
    """
    if device.type == "cpu" and not strict:
        return TorchBackend(device, "reference attention in PyTorch: the device is a CPU")
    obstacle = kernel_obstacle(device, shape, recipe)
    if obstacle is None:
        from octavo.attention.cuda import CudaBackend
        from octavo.attention.fused import prefill_told

        dtype = getattr(torch, shape.dtype)
        prefill = prefill_told([(g.head_dim, g.window) for g in shape.groups], dtype)
        name = torch.cuda.get_device_name(device)
        return CudaBackend(device, f"kernels for {name}, {recipe.pair}; {prefill}")
    if strict:
        raise UnsupportedModel(f"the GPU kernels cannot run: {obstacle}; change that, or drop strict")
    return TorchBackend(device, f"reference attention in PyTorch, slow: {obstacle}")


def kernel_obstacle(device: torch.device, shape: ModelShape, recipe: Recipe) -> str | None:
    """What keeps the kernels from serving; None where nothing does."""
    if device.type != "cuda":
        return f"they need a CUDA device, not {device.type}"
    if reason := unavailable():
        return reason
    if shape.dtype not in ("bfloat16", "float16"):
        return (
            f"the model runs in {shape.dtype}; the kernels read bfloat16 and float16 pages (--dtype bfloat16)"
        )
    for side, name in dict.fromkeys(part for k, v in recipe.pairs for part in (("keys", k), ("values", v))):
        for head_dim in {group.head_dim for group in shape.groups}:
            kept = name if get_format(name).quantised or name == "plain" else plain_twin(name, shape.dtype)
            if reason := covers(kept, head_dim):
                return f"{side}: {reason}"
    return None


def plain_twin(name: str, dtype: str) -> str:
    """A 16-bit format counts as plain where it is the model's own dtype."""
    return "plain" if {"f16": "float16", "bf16": "bfloat16"}.get(name) == dtype else name
