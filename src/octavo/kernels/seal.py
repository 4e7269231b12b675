"""Plain pages become packed ones on the GPU, all layers of a group at once.

The Python side of cuda/seal.cu, viterbi.cu and viterbi_fit.cu. The bytes are those of PageCodec.encode but
for near ties: sums over a span or a page are added in another order, so a mean, a root mean square or a gain
may differ in its last bit, and a value that lies on the edge between two codes may fall to the other side.
Formats of ggml without a mean have no such sums: equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from octavo.errors import InvalidRequest
from octavo.formats.base import PAGE
from octavo.formats.codec import PageCodec
from octavo.formats.gains import GAIN_RULES
from octavo.formats.trellis import load_table
from octavo.formats.turbo import UNITS
from octavo.kernels.launch import load_kernel, multiprocessors, sorted_defines
from octavo.kernels.unpack import level_table, side_defines, stored_format
from octavo.kernels.variants import STATE_BITS
from octavo.pages.store import SIDES, GroupPool

__all__ = ["Source", "seal_pages", "seal_sources"]

THREADS = 256
"""Of a CTA that has one page of one KV head."""

STREAM_BYTES = 32 << 20
"""Scratch for values on their way to the trellis walk: more pages are sealed in several turns."""

RIDE_BYTES = 100 << 20
"""Scratch for the walks' choices, which bounds how many pages are walked at once."""

WALKS = 8
"""Pages a multiprocessor walks at once, at most; best the same number in each of its four quarters."""


@dataclass(frozen=True)
class Source:
    """A kernel to compile: file and function in cuda/, macros, threads and shared bytes of a CTA."""

    file: str
    function: str
    defines: tuple[tuple[str, int], ...]
    threads: int
    shared: int

    def __call__(self, grid: tuple[int, int, int], *arguments: object) -> None:
        load_kernel(self.file, self.function, self.defines, self.threads, self.shared)(grid, *arguments)


def seal_pages(pool: GroupPool, plain_slots: Tensor, packed_slots: Tensor) -> None:
    """Pack plain slots [n] into packed slots [n], int64 on the device, in every layer and on both sides.

    One launch a side and format, or three where that is a trellis, for every 32 MiB of values; nothing waits
    for the device. 16-bit formats are copied by PyTorch. Raises UnsupportedModel, KernelsUnavailable.
    """
    for slots in (plain_slots, packed_slots):
        if slots.dtype != torch.int64 or slots.shape != (len(plain_slots),):
            raise InvalidRequest(
                f"slots are int64 [n], alike on both sides, not {slots.dtype} {list(slots.shape)}"
            )
    if not len(plain_slots):
        return
    for job in _jobs(pool):
        if not job.codec.format.quantised:
            job.copy(plain_slots, packed_slots)
        elif job.codec.format.name in STATE_BITS:
            job.seal_trellis(plain_slots, packed_slots)
        else:
            job.quantise(plain_slots, packed_slots, None)


def seal_sources(codec: PageCodec, dtype: torch.dtype) -> list[Source]:
    """The kernels that pack one side, in order: one, or three where the format is a trellis."""
    format, d = stored_format(codec, dtype), codec.head_dim
    common = side_defines(codec, dtype)
    gain = codec.gain if format.startswith("turbo") and format != "turbo8" else GAIN_RULES[0]
    page = common | {"RULE": GAIN_RULES.index(gain)}
    mean, rows, trellis = 4 * d, PAGE * (d + 8), format in STATE_BITS
    size = mean * codec.centred + rows * (1 + trellis)
    first = Source("seal.cu", "seal", sorted_defines(page), THREADS, size)
    if not trellis:
        return [first]
    walk = {name: value for name, value in common.items() if name not in ("KEYS", "HALF")}
    return [
        first,
        Source("viterbi.cu", "viterbi", sorted_defines(walk), 32, 0),
        Source(
            "viterbi_fit.cu", "fit", sorted_defines(page), THREADS, mean + (1 << STATE_BITS[format]) + rows
        ),
    ]


class _Job:
    """The layers of a pool that one codec packs: their plain and packed pages, and the kernels."""

    def __init__(self, codec: PageCodec, plain: list[Tensor], packed: list[Tensor]) -> None:
        self.codec, self.plain, self.packed = codec, plain, packed
        _, self.heads, _, self.head_dim = plain[0].shape
        self.device = plain[0].device
        self.plain_addresses = torch.tensor([t.data_ptr() for t in plain], device=self.device)
        self.packed_addresses = torch.tensor([t.data_ptr() for t in packed], device=self.device)
        self.sources = seal_sources(codec, plain[0].dtype) if codec.format.quantised else []

    def copy(self, plain_slots: Tensor, packed_slots: Tensor) -> None:
        """16-bit formats."""
        for pages, target in zip(self.plain, self.packed, strict=True):
            data = self.codec.encode(pages[plain_slots].flatten(0, 1))
            target[packed_slots] = data.view(len(plain_slots), self.heads, -1)

    def quantise(self, plain_slots: Tensor, packed_slots: Tensor, streams: Tensor | None) -> None:
        """All of a page; of a trellis page the mean, and `streams` int16 for the walk."""
        unit = _unit(self.codec.format.name)
        self._launch(self.sources[0], plain_slots, packed_slots, unit, streams)

    def seal_trellis(self, plain_slots: Tensor, packed_slots: Tensor) -> None:
        """In turns, as many pages at a time as the scratch holds."""
        values = len(self.plain) * self.heads * PAGE * self.head_dim
        turn = min(max(1, STREAM_BYTES // (2 * values)), len(plain_slots))
        streams = torch.empty(turn * values, dtype=torch.int16, device=self.device)
        table = level_table(self.codec.format.name, self.device)
        for first in range(0, len(plain_slots), turn):
            some = plain_slots[first : first + turn], packed_slots[first : first + turn]
            self.quantise(*some, streams)
            self._walk(some[1], streams)
            self._launch(self.sources[2], *some, table)

    def _walk(self, packed_slots: Tensor, streams: Tensor) -> None:
        moves, bits = len(packed_slots), self.codec.format.bits
        pages = len(self.plain) * moves * self.heads
        ride_bytes = 32 * 2 * self.head_dim * _overlaps(bits) * bits // 8
        most, even = min(RIDE_BYTES // ride_bytes, WALKS * multiprocessors()), 4 * multiprocessors()
        ctas = min(pages, most // even * even if most >= even else max(1, most))
        ctas = -(-pages // -(-pages // ctas))  # as many turns, each as even as can be
        rides = torch.empty(ctas * ride_bytes, dtype=torch.uint8, device=self.device)
        where = self.packed_addresses, packed_slots, moves, self.heads, pages
        self.sources[1]((ctas, 1, 1), streams, *where, rides)

    def _launch(self, source: Source, plain_slots: Tensor, packed_slots: Tensor, *more: object) -> None:
        """A CTA for each page of one KV head."""
        grid = len(plain_slots) * self.heads, len(self.plain), 1
        slots = self.plain_addresses, plain_slots, self.packed_addresses, packed_slots
        source(grid, *slots, self.heads, *more)


_JOBS: WeakKeyDictionary[GroupPool, list[_Job]] = WeakKeyDictionary()


def _jobs(pool: GroupPool) -> list[_Job]:
    if pool not in _JOBS:
        sides = zip(SIDES, (pool.k_plain, pool.v_plain), strict=True)
        _JOBS[pool] = [
            _Job(codec, [plain[n] for n in layers], [pool.packed[side][n] for n in layers])
            for side, plain in sides
            for codec, layers in pool.store.by_codec(side).items()
        ]
    return _JOBS[pool]


def _unit(name: str) -> float:
    """What cuda/seal.cu scales by."""
    if name in STATE_BITS:
        return load_table(int(name[len("turbo")]))[1]
    return {"turbo4": UNITS[4], "turbo3": UNITS[3], "turbo2": UNITS[2]}.get(name, 0.0)


def _overlaps(bits: int) -> int:
    return len(load_table(bits)[0]) >> bits
