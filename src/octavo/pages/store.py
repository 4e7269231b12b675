"""The bytes of all pages, one `GroupPool` per layer group.

    plain    k, v   [L, plain slots, G, 64, D]      the model's dtype, rotated where the recipe rotates
    packed   k, v   per layer [packed slots, G, bytes of a page of one head]

Letters: L layers of the group, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from octavo.formats.base import PAGE, Layout, Side
from octavo.formats.codec import PageCodec
from octavo.formats.registry import get_format
from octavo.formats.rotation import rotation_matrix
from octavo.model.shape import LayerGroup
from octavo.pages.sizing import GroupNeed
from octavo.recipe import Recipe

__all__ = ["SIDES", "GroupPool", "LayerPages", "Sealer", "Store"]


SIDES: tuple[Side, Side] = ("k", "v")

AT_ONCE = 1 << 20
"""Values that are sealed together, of as many layers as that makes: a GPU is slow on few."""


class Store:
    """How the keys and values of one layer group are kept: codecs, rotations and scales, no memory.

    codecs, rotations   per side, one for each layer of the group in its order; layers of one format share
                        one codec. Rotations are None where a layer's side is not rotated
    scales              what keys are multiplied by and queries divided by [G, D], None where nothing is
    packs               whether the group is quantised; `seals`: whether that happens to whole pages. With
                        `force` every group is, and by `round_trip` alone: its pages stay plain
    """

    def __init__(
        self,
        group: LayerGroup,
        recipe: Recipe,
        dtype: torch.dtype,
        layout: Layout = "rows",
        force: bool = False,
    ):
        quantises = group.window is None or recipe.sliding or force
        formats = [recipe.formats(layer) for layer in group.layers]
        self.group = group
        self.dtype = dtype
        self.packs = quantises and any(pair != ("plain", "plain") for pair in formats)
        self.seals = self.packs and not force
        self.codecs: dict[Side, tuple[PageCodec, ...]] = {}
        self.rotations: dict[Side, tuple[torch.Tensor | None, ...]] = {}
        turn = rotation_matrix(group.head_dim) if self.packs and recipe.rotate else None
        gains: dict[Side, str] = {"k": recipe.k_gain, "v": recipe.v_gain}
        for n, side in enumerate(SIDES):
            made = {
                name: PageCodec(
                    get_format(name), group.head_dim, side, layout=layout, gain=gains[side],
                    centred=side == "k" and recipe.centre and get_format(name).quantised, dtype=dtype,
                )
                for name in dict.fromkeys(pair[n] for pair in formats)
            }  # fmt: skip
            self.codecs[side] = tuple(made[pair[n]] for pair in formats)
            self.rotations[side] = tuple(turn if c.format.quantised else None for c in self.codecs[side])
        self.scales = tuple(
            recipe.scales.of(layer) if recipe.scales and self.packs and codec.format.quantised else None
            for layer, codec in zip(group.layers, self.codecs["k"], strict=True)
        )

    @cached_property
    def plain_bytes(self) -> int:
        """Bytes of one plain page over all layers of the group."""
        g = self.group
        return len(g.layers) * 2 * g.kv_heads * PAGE * g.head_dim * self.dtype.itemsize

    @cached_property
    def packed_bytes(self) -> int:
        """Bytes of one packed page over all layers of the group; 0 if none is ever sealed."""
        return sum(self.layer_bytes) if self.seals else 0

    @property
    def layer_bytes(self) -> list[int]:
        """Bytes of one packed page in each layer of the group."""
        pairs = zip(self.codecs["k"], self.codecs["v"], strict=True)
        return [self.group.kv_heads * (k.nbytes + v.nbytes) for k, v in pairs]

    def by_codec(self, side: Side) -> dict[PageCodec, list[int]]:
        """Codec → the layers of the group, by their place in it, that it packs."""
        found: dict[PageCodec, list[int]] = {}
        for n, codec in enumerate(self.codecs[side]):
            found.setdefault(codec, []).append(n)
        return found

    @property
    def need(self) -> GroupNeed:
        return GroupNeed(self.group.name, self.plain_bytes, self.packed_bytes, self.group.window)

    def round_trip(self, parts: list[torch.Tensor], side: Side, layer: int) -> list[torch.Tensor]:
        """Each of `parts` [T, G, D] as it would come back from packed pages of the group's n-th layer; a part
        is cut into pages, the last one may be short."""
        codec = self.codecs[side][layer]
        pages = torch.cat([cut_pages(part) for part in parts])
        back = codec.decode(codec.encode(pages.flatten(0, 1)), pages.dtype).view_as(pages)
        some = torch.split(back, [-(-len(part) // PAGE) for part in parts])
        return [x.transpose(1, 2).flatten(0, 1)[: len(p)] for x, p in zip(some, parts, strict=True)]


@dataclass(frozen=True)
class LayerPages:
    """One layer's pages: plain [slots, G, 64, D], packed uint8 [slots, G, bytes], and their codecs."""

    k_plain: torch.Tensor
    v_plain: torch.Tensor
    k_packed: torch.Tensor
    v_packed: torch.Tensor
    k_codec: PageCodec
    v_codec: PageCodec


class GroupPool:
    """Allocated memory of one layer group. A backend's `sealer` packs pages in place of the codecs."""

    def __init__(
        self,
        store: Store,
        plain_slots: int,
        packed_slots: int,
        device: torch.device,
        sealer: Sealer | None = None,
    ):
        group = store.group
        self.store = store
        self.device = device
        self.sealer = sealer
        self.spare = plain_slots
        """A plain slot that belongs to no page: padding rows of a fixed batch write there."""
        shape = (len(group.layers), plain_slots + 1, group.kv_heads, PAGE, group.head_dim)
        self.k_plain = zeros(shape, store.dtype, device)
        self.v_plain = zeros(shape, store.dtype, device)
        self.packed: dict[Side, list[torch.Tensor]] = {
            side: [
                zeros((packed_slots, group.kv_heads, codec.nbytes), torch.uint8, device)
                for codec in store.codecs[side]
            ]
            for side in SIDES
        }
        self.rotations = {side: on_device(turns, device) for side, turns in store.rotations.items()}
        self.scales = on_device(store.scales, device)

    def append(
        self, layer: int, slots: torch.Tensor, offsets: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Write this step's k, v [T, G, D] of group layer `layer` into plain slots [T] at token offsets
        [T]."""
        self.k_plain[layer][slots, :, offsets] = k
        self.v_plain[layer][slots, :, offsets] = v

    def copy_plain(self, source: int, target: int) -> None:
        """Copy a plain page in every layer: how a fork gets its own open page."""
        self.k_plain[:, target] = self.k_plain[:, source]
        self.v_plain[:, target] = self.v_plain[:, source]

    def seal(self, moves: list[tuple[int, int]]) -> None:
        """Pack plain slots into packed slots, [(plain, packed), ...], in every layer."""
        plain = torch.tensor([p for p, _ in moves], device=self.device)
        packed = torch.tensor([q for _, q in moves], device=self.device)
        if self.sealer is not None:
            self.sealer(self, plain, packed)
            return
        for side, pages in zip(SIDES, (self.k_plain, self.v_plain), strict=True):
            for codec, layers in self.store.by_codec(side).items():
                values = len(moves) * pages[0, 0].numel()
                for some in batched(layers, max(1, AT_ONCE // values)):
                    x = torch.stack([pages[n][plain] for n in some])
                    data = codec.encode(x.flatten(0, 2)).view(*x.shape[:3], -1)
                    for n, layer in enumerate(some):
                        self.packed[side][layer][packed] = data[n]

    def layer(self, n: int) -> LayerPages:
        """The pages of the group's n-th layer."""
        codecs = self.store.codecs
        packed = (self.packed["k"][n], self.packed["v"][n])
        return LayerPages(self.k_plain[n], self.v_plain[n], *packed, codecs["k"][n], codecs["v"][n])

    @property
    def nbytes(self) -> int:
        packed = sum(t.nbytes for tensors in self.packed.values() for t in tensors)
        return self.k_plain.nbytes + self.v_plain.nbytes + packed


Sealer = Callable[[GroupPool, torch.Tensor, torch.Tensor], None]
"""Packs plain slots [n] into packed slots [n], int64 on the pool's device, in every layer."""


def cut_pages(part: torch.Tensor) -> torch.Tensor:
    """part [T, G, D] → its pages [P, G, 64, D]. A short last one is filled up with its mean, which leaves its
    mean as it is."""
    t, g, d = part.shape
    if rest := t % PAGE:
        part = torch.cat([part, part[t - rest :].mean(0, keepdim=True).expand(PAGE - rest, -1, -1)])
    return part.view(-1, PAGE, g, d).transpose(1, 2)


def batched(items: list[int], size: int) -> list[list[int]]:
    """`items` cut into lists of at most `size`."""
    return [items[n : n + size] for n in range(0, len(items), size)]


def on_device(
    tensors: tuple[torch.Tensor | None, ...], device: torch.device
) -> tuple[torch.Tensor | None, ...]:
    """The tensors on `device`; one that is there several times is moved once."""
    moved = {id(t): t.to(device) for t in tensors if t is not None}
    return tuple(None if t is None else moved[id(t)] for t in tensors)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that cost no memory until they are written, where the system can do that."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)
