"""Bits a value and bytes a token of a recipe on one model."""

from __future__ import annotations

import torch

from octavo.formats.base import PAGE
from octavo.model.shape import LayerGroup, ModelShape
from octavo.pages.store import Store
from octavo.recipe import Recipe

__all__ = ["bits_per_value", "bytes_per_token", "packed_layers", "pool_bytes"]


def bits_per_value(recipe: Recipe, shape: ModelShape) -> float:
    """Stored bits of packed pages over the values they hold, the mean of K and V over packed layers.

    Of a model whose every layer slides, and of plain recipes: over all layers.
    """
    groups = _packed(recipe, shape) or list(shape.groups)
    values = sum(_values(g) for g in groups)
    return 8 * sum(_page_bytes(recipe, g, shape) / PAGE for g in groups) / values


def bytes_per_token(recipe: Recipe, shape: ModelShape) -> float:
    """Bytes that one more token of context takes for good.

    Layers with a window forget, so they do not count, unless every layer has one.
    """
    growing = [g for g in shape.groups if g.window is None] or list(shape.groups)
    packed = _packed(recipe, shape)
    plain = recipe.with_(k="plain", v="plain")
    return sum(_page_bytes(recipe if g in packed else plain, g, shape) / PAGE for g in growing)


def _packed(recipe: Recipe, shape: ModelShape) -> list[LayerGroup]:
    return [g for g in shape.groups if recipe.packs and (recipe.sliding or g.window is None)]


def packed_layers(recipe: Recipe, shape: ModelShape) -> list[int]:
    """The layers that a recipe of quantised formats packs."""
    return sorted(n for g in shape.groups if recipe.sliding or g.window is None for n in g.layers)


def _values(group: LayerGroup) -> int:
    return 2 * group.kv_heads * group.head_dim * len(group.layers)


def _page_bytes(recipe: Recipe, group: LayerGroup, shape: ModelShape) -> int:
    """Bytes of one page over the group's layers and heads."""
    return sum(Store(group, recipe, getattr(torch, shape.dtype), force=True).layer_bytes)


def pool_bytes(shape: ModelShape, tokens: int, chunk: int) -> int:
    """A pool that holds `tokens` of any recipe with room to spare, open and young pages and those of a step
    of `chunk` tokens included."""
    dtype: torch.dtype = getattr(torch, shape.dtype)
    return 2 * shape.kv_values_per_token() * dtype.itemsize * (tokens + max(2048, chunk))
