"""The pool of one engine: how large each group is and why, its bytes, and the ledger over them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import torch

from octavo.attention.backend import Backend
from octavo.errors import InvalidRequest, PoolFull
from octavo.formats.base import PAGE
from octavo.model.shape import ModelShape
from octavo.pages.ledger import GONE, Holding, Ledger, Move
from octavo.pages.sizing import GroupSize, fitting_chunk, parse_bytes, size_pool
from octavo.pages.store import GroupPool, Store
from octavo.recipe import Recipe

__all__ = ["Memory", "default_budget", "make_stores"]

CPU_SHARE, CPU_MOST = 0.25, 4 * 2**30
GPU_SHARE = 0.85


def default_budget(device: torch.device) -> tuple[int, str]:
    """Bytes for the pool when nobody said, and the reason."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(
            free * GPU_SHARE
        ), f"{GPU_SHARE:.0%} of the {free:,} bytes free on {device} after the weights"
    pages = available_memory()
    budget = min(int(pages * CPU_SHARE), CPU_MOST)
    return budget, f"{CPU_SHARE:.0%} of the {pages:,} bytes of memory available, at most {CPU_MOST:,}"


def available_memory() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise InvalidRequest(
        "the system does not say how much memory is available; name a pool size with --memory"
    )


def make_stores(
    shape: ModelShape, recipe: Recipe, backend: Backend, *, everywhere: bool = False
) -> list[Store]:
    """How each layer group is kept; `everywhere` quantises sliding groups whatever the recipe says."""
    dtype = getattr(torch, shape.dtype)
    return [Store(g, recipe, dtype, backend.layout, force=everywhere) for g in shape.groups]


@dataclass
class Memory:
    """The pools and the ledger of an engine, and how many prompt tokens a step of it has at most."""

    stores: list[Store]
    sizes: list[GroupSize]
    pools: list[GroupPool]
    ledger: Ledger
    budget: int
    budget_reason: str
    chunk: int

    @classmethod
    def build(
        cls,
        shape: ModelShape,
        recipe: Recipe,
        backend: Backend,
        device: torch.device,
        identity: str,
        memory: int | str | None,
        *,
        sequences: int,
        chunk: int | None,
        everywhere: bool = False,
    ) -> Memory:
        stores = make_stores(shape, recipe, backend, everywhere=everywhere)
        if memory is None:
            budget, reason = default_budget(device)
        else:
            budget, reason = parse_bytes(memory), "asked for"
        settings = {"recent": recipe.recent, "exact_pages": recipe.exact_pages}
        needs = [s.need for s in stores]
        if chunk is None:
            chunk = fitting_chunk(needs, budget, backend.prompt_chunk)
        sizes = size_pool(needs, budget, sequences=sequences, chunk=chunk, **settings)
        try:
            pools = [
                GroupPool(s, z.plain, z.packed, device, backend.sealer)
                for s, z in zip(stores, sizes, strict=True)
            ]
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise PoolFull(
                f"{device} has no room for a pool of {budget:,} bytes ({reason}): {error}; lower --memory"
            ) from error
        root = hashlib.blake2b(
            f"{identity} {json.dumps(recipe.as_dict(), sort_keys=True)}".encode(), digest_size=16
        )
        ledger = Ledger.build(
            [(z.plain, z.packed) for z in sizes],
            [s.group.window for s in stores],
            [s.seals for s in stores],
            root.digest(),
            **settings,
        )
        return cls(stores, sizes, pools, ledger, budget, reason, chunk)

    @property
    def capacity(self) -> int:
        """Tokens the longest sequence can have in the empty pool."""
        pages = [
            z.plain + z.packed for z, s in zip(self.sizes, self.stores, strict=True) if s.group.window is None
        ]
        return min(pages) * PAGE if pages else 2**31

    @property
    def live_bytes(self) -> int:
        """Bytes of all pages that someone holds."""
        total = 0
        for group, store in zip(self.ledger.groups, self.stores, strict=True):
            total += group.allocator.count("plain").live * store.plain_bytes
            total += group.allocator.count("packed").live * store.packed_bytes
        return total

    def bytes_of(self, holding: Holding) -> int:
        """Bytes of the pages in one sequence's tables."""
        total = 0
        for group, store, table in zip(self.ledger.groups, self.stores, holding.tables, strict=True):
            for page in table:
                if page != GONE:
                    packed = group.allocator.kind(page) == "packed"
                    total += store.packed_bytes if packed else store.plain_bytes
        return total

    @property
    def cells(self) -> int:
        """Token slots held in the group that holds most."""
        return PAGE * max(g.allocator.live_pages for g in self.ledger.groups)

    def copy(self, moves: list[Move]) -> None:
        for move in moves:
            self.pools[move.group].copy_plain(move.source, move.target)

    def seal(self, moves: list[Move]) -> None:
        for n, pool in enumerate(self.pools):
            own = [(m.source, m.target) for m in moves if m.group == n]
            if own:
                pool.seal(own)
