"""The bytes of all pages, one `GroupPool` per layer group.

    plain    k, v   [L, plain slots, G, 64, D]      the model's dtype, rotated where the recipe rotates
    packed   k, v   per layer [packed slots, G, bytes of a page of one head]

Letters: L layers of the group, G KV heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from octavo.formats.base import PAGE, Layout, Side
from octavo.formats.codec import PageCodec
from octavo.formats.registry import get_format
from octavo.formats.rotation import rotation_matrix
from octavo.model.shape import LayerGroup
from octavo.pages.sizing import GroupNeed
from octavo.recipe import Recipe

__all__ = ["GroupPool", "LayerPages", "Store"]


class Store:
    """How the keys and values of one layer group are kept: codecs and rotations, no memory."""

    def __init__(
        self,
        group: LayerGroup,
        recipe: Recipe,
        dtype: torch.dtype,
        layout: Layout = "rows",
        force: bool = False,
    ):
        quantises = group.window is None or recipe.sliding or force
        self.group = group
        self.dtype = dtype
        self.packs = recipe.packs and quantises
        self.codecs: dict[Side, PageCodec] = {}
        self.rotations: dict[Side, torch.Tensor | None] = {"k": None, "v": None}
        names: dict[Side, str] = {"k": recipe.k, "v": recipe.v}
        gains: dict[Side, str] = {"k": recipe.k_gain, "v": recipe.v_gain}
        for side in ("k", "v"):
            form = get_format(names[side])
            centred = side == "k" and recipe.centre and form.quantised
            self.codecs[side] = PageCodec(
                form, group.head_dim, side, layout=layout, gain=gains[side], centred=centred, dtype=dtype
            )
            if self.packs and form.quantised and recipe.rotate:
                self.rotations[side] = rotation_matrix(group.head_dim)

    @property
    def plain_bytes(self) -> int:
        """Bytes of one plain page over all layers of the group."""
        g = self.group
        return len(g.layers) * 2 * g.kv_heads * PAGE * g.head_dim * self.dtype.itemsize

    @property
    def packed_bytes(self) -> int:
        """Bytes of one packed page over all layers of the group; 0 if the group is never packed."""
        if not self.packs:
            return 0
        return (
            len(self.group.layers) * self.group.kv_heads * (self.codecs["k"].nbytes + self.codecs["v"].nbytes)
        )

    @property
    def need(self) -> GroupNeed:
        return GroupNeed(self.group.name, self.plain_bytes, self.packed_bytes, self.group.window)

    def round_trip(self, x: torch.Tensor, side: Side) -> torch.Tensor:
        """x [G, T, D] as it would come back from packed pages; T is cut into pages, the last one may be
        short."""
        g, t, d = x.shape
        pages = -(-t // PAGE)
        pad = pages * PAGE - t
        if pad:  # pad with the mean of the short page, which leaves its mean as it is
            tail = x[:, (pages - 1) * PAGE :].mean(1, keepdim=True)
            x = torch.cat([x, tail.expand(-1, pad, -1)], 1)
        codec = self.codecs[side]
        back = codec.decode(codec.encode(x.reshape(g * pages, PAGE, d)), x.dtype)
        return back.reshape(g, pages * PAGE, d)[:, :t]


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
    """Allocated memory of one layer group."""

    def __init__(self, store: Store, plain_slots: int, packed_slots: int, device: torch.device):
        group = store.group
        self.store = store
        self.device = device
        self.spare = plain_slots
        """A plain slot that belongs to no page: padding rows of a fixed batch write there."""
        shape = (len(group.layers), plain_slots + 1, group.kv_heads, PAGE, group.head_dim)
        self.k_plain = zeros(shape, store.dtype, device)
        self.v_plain = zeros(shape, store.dtype, device)
        self.packed: dict[Side, list[torch.Tensor]] = {
            side: [
                zeros((packed_slots, group.kv_heads, store.codecs[side].nbytes), torch.uint8, device)
                for _ in group.layers
            ]
            for side in ("k", "v")
        }
        self.rotations = {side: None if r is None else r.to(device) for side, r in store.rotations.items()}

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
        for side, pages in (("k", self.k_plain), ("v", self.v_plain)):
            codec = self.store.codecs[side]  # type: ignore[index]
            for layer, target in enumerate(self.packed[side]):  # type: ignore[index]
                x = pages[layer][plain]
                target[packed] = codec.encode(x.flatten(0, 1)).view(x.shape[0], x.shape[1], -1)

    def layer(self, n: int) -> LayerPages:
        """The pages of the group's n-th layer."""
        codecs = self.store.codecs
        packed = (self.packed["k"][n], self.packed["v"][n])
        return LayerPages(self.k_plain[n], self.v_plain[n], *packed, codecs["k"], codecs["v"])

    @property
    def nbytes(self) -> int:
        packed = sum(t.nbytes for tensors in self.packed.values() for t in tensors)
        return self.k_plain.nbytes + self.v_plain.nbytes + packed


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that cost no memory until they are written, where the system can do that."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)
