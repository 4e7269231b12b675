"""Variants of the decode kernel: the compile-time settings, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from octavo.errors import UnsupportedModel
from octavo.formats.registry import get_format
from octavo.formats.turbo import LEVELS

__all__ = [
    "HEAD_DIMS",
    "KERNEL_FORMATS",
    "Attending",
    "Variant",
    "choose",
    "covers",
    "level_words",
    "page_bytes",
]

KERNEL_FORMATS = (
    "plain", "q8_0", "q6_0", "q5_1", "q5_0", "q4_0",
    "turbo8", "turbo4", "turbo3", "turbo2", "turbo4_tcq", "turbo3_tcq", "turbo2_tcq",
)  # fmt: skip
"""In the order of the enum in cuda/formats.cuh; a 16-bit format that is the model's dtype counts as plain."""

HEAD_DIMS = (64, 128, 256, 512)

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory a Hopper CTA may use."""

STATE_BITS = {"turbo4_tcq": 8, "turbo3_tcq": 9, "turbo2_tcq": 8}


@dataclass(frozen=True)
class Attending:
    """What every kernel that attends over pages is compiled for."""

    k: str
    v: str
    head_dim: int
    centred: bool = field(default=False, kw_only=True)
    softcap: bool = field(default=False, kw_only=True)
    half: bool = field(default=False, kw_only=True)

    def defines(self) -> dict[str, int]:
        """Macros of the compilation."""
        return {
            "KF": KERNEL_FORMATS.index(self.k),
            "VF": KERNEL_FORMATS.index(self.v),
            "HD": self.head_dim,
            "CENTRED": int(self.centred),
            "SOFTCAP": int(self.softcap),
            "HALF": int(self.half),
            "SHARED_BYTES": self.shared_bytes,
        } | level_words()

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        raise NotImplementedError

    @property
    def table_bytes(self) -> int:
        """Of that, tables of trellis formats."""
        return sum(128 << STATE_BITS[f] for f in {self.k, self.v} if f in STATE_BITS)


@dataclass(frozen=True)
class Variant(Attending):
    """One compiled decode kernel. `slice` is how many channels of V a warp accumulates."""

    rows: int
    warps: int = 8
    stages: int = 2
    slice: int = 128

    def defines(self) -> dict[str, int]:
        """Macros of the compilation."""
        own = {"ROWS": self.rows, "WARPS": self.warps, "STAGES": self.stages, "SLICE": self.slice}
        return super().defines() | own

    @property
    def stage_bytes(self) -> int:
        """A page of keys, and of values the warp's slice; of a trellis also where its last windows end."""
        values = page_bytes(self.v, self.head_dim, False) * self.slice // self.head_dim
        beyond = 512 if self.v in STATE_BITS and self.slice < self.head_dim else 0
        return page_bytes(self.k, self.head_dim, self.centred) + values + beyond

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA; cuda/layout.cuh computes the same."""
        fine = get_bits(self.k) == 8
        rows = self.rows * (self.head_dim * (3 + fine) + self.head_dim // 32 * 12 + 12)
        small = self.table_bytes + rows + 8 * self.rows * self.warps + 1536 + 16 * self.warps * self.stages
        warp = max(self.stages * self.stage_bytes, 4 * self.rows * self.slice)
        return -(-small // 128) * 128 + self.warps * warp


def get_bits(format: str) -> int:
    """Bits of a code."""
    return 16 if format == "plain" else int(getattr(get_format(format), "bits"))  # noqa: B009


def page_bytes(format: str, head_dim: int, centred: bool) -> int:
    """Bytes of a staged page; plain pages are not staged."""
    if format == "plain":
        return 0
    return get_format(format).nbytes(head_dim) + (head_dim + 16 if centred else 0)


def level_words() -> dict[str, int]:
    """The turbo formats' levels as 32-bit table words for byte permutes."""
    words: dict[str, int] = {}
    for bits, upper in LEVELS.items():
        levels = [-v for v in reversed(upper)] + list(upper)
        if bits == 4:
            levels = [(v + 127) // 2 for v in levels]
        for i in range(0, len(levels), 4):
            value = sum((v & 255) << (8 * n) for n, v in enumerate(levels[i : i + 4]))
            words[f"TURBO{bits}_{i // 4}"] = value
    return words


def covers(format: str, head_dim: int) -> str | None:
    """Why the kernels cannot read this format or head dim; None where they can."""
    if format not in KERNEL_FORMATS:
        return f"format {format!r} has no kernel"
    if head_dim not in HEAD_DIMS:
        return f"head_dim {head_dim} has no kernel; there is one for {', '.join(map(str, HEAD_DIMS))}"
    return None


def choose(
    k: str, v: str, head_dim: int, rows: int, *, shared_limit: int = SHARED_LIMIT, **settings: bool
) -> Variant:
    """The variant that measured best for these pages; `rows` is the most query rows in a run,
    `shared_limit` the bytes of shared memory a CTA of the device may use.

    Raises UnsupportedModel where there is no kernel.
    """
    for format in (k, v):
        if reason := covers(format, head_dim):
            raise UnsupportedModel(f"{reason}; choose another recipe or the reference backend")
    variant = Variant(k, v, head_dim, 8 if rows <= 8 else 16, **settings)
    return fit(replace(variant, slice=slice_for(head_dim, variant.rows)), shared_limit)


def slice_for(head_dim: int, rows: int) -> int:
    """Channels of V a warp keeps: what leaves its accumulators in registers."""
    return min(head_dim, 256 if rows == 8 else 128)


def fit(variant: Variant, shared_limit: int) -> Variant:
    """With the warps and stages that measured best on an H200, or the next fewer that fit."""
    best = _best(variant)
    for warps, stages in (best, (8, 1), (6, 1), (4, 1), (2, 1)):
        fitted = replace(variant, warps=warps, stages=stages)
        if warps <= best[0] and fitted.shared_bytes <= shared_limit:
            return fitted
    raise UnsupportedModel(
        f"pages of {variant.stage_bytes} bytes a KV head exceed shared memory; use fewer bits"
    )


def _best(variant: Variant) -> tuple[int, int]:
    """Warps and stages by measurement (benchmarks/kernels.py --tune).

    Eight warps have all the registers they ask for; formats whose codes cost the most integer instructions
    want more warps to hide them behind, as far as their registers go. turbo4's go no further, nor do turbo3's
    with 16 rows.
    """
    pair, turbo = {variant.k, variant.v}, {"turbo4", "turbo3", "turbo2"}
    if variant.rows == 8 and variant.head_dim == 64:
        return (16 if pair <= turbo else 12), 1
    if STATE_BITS.keys() & pair:
        return 12, 1
    if pair == {"turbo4"} or (variant.rows == 16 and pair == {"turbo3"}):
        return 8, 1
    return (12, 1) if variant.head_dim == 128 and pair <= turbo else (8, 1)
