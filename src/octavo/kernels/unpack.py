"""Pages as dense keys or values on the GPU: the Python side of cuda/unpack.cu."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from octavo.errors import InvalidRequest, UnsupportedModel
from octavo.formats.base import PAGE, Side
from octavo.formats.codec import PageCodec
from octavo.formats.trellis import load_table
from octavo.kernels.launch import Kernel, load_kernel, multiprocessors, sorted_defines
from octavo.kernels.variants import KERNEL_FORMATS, STATE_BITS, covers, level_words
from octavo.pages.store import LayerPages

__all__ = ["level_table", "side_defines", "stored_format", "unpack_pages"]

WARPS = 8
"""Of a CTA; each takes a part of a page at a time."""

RESIDENT, RESIDENT_TRELLIS = 8, 3
"""CTAs a multiprocessor gets at most, which walk over the parts. With a table to stage, what it holds."""


def unpack_pages(pages: LayerPages, addresses: Tensor, side: Side, out: Tensor | None = None) -> Tensor:
    """The pages at `addresses`, int32 [P] on the device, in order: [G, 64 P, D] in the plain pages' dtype.

    Packed and plain pages may alternate; the mean of centred keys is added back. Values equal those of
    PageCodec.decode. Launches only. Raises UnsupportedModel where there is no kernel for the format or the
    head dim, KernelsUnavailable.
    """
    codec, packed, plain = _one_side(pages, side)
    _, heads, _, head_dim = plain.shape
    shape = (heads, len(addresses) * PAGE, head_dim)
    if out is None:
        out = torch.empty(shape, dtype=plain.dtype, device=plain.device)
    elif out.shape != shape or out.dtype != plain.dtype or not out.is_contiguous():
        raise InvalidRequest(
            f"out must be contiguous {plain.dtype} {list(shape)}, not {out.dtype} {list(out.shape)}"
        )
    if addresses.dtype != torch.int32:
        raise InvalidRequest(f"page addresses are int32, not {addresses.dtype}")
    if not len(addresses):
        return out
    kernel, levels, resident = _prepared(codec, plain.dtype, plain.device)
    parts = len(addresses) * heads * head_dim // 32
    grid = min(-(-parts // WARPS), resident * multiprocessors())
    kernel((grid, 1, 1), packed, plain, addresses.contiguous(), levels, out, len(addresses), heads)
    return out


@lru_cache(maxsize=64)
def _prepared(
    codec: PageCodec, dtype: torch.dtype, device: torch.device
) -> tuple[Kernel, Tensor | None, int]:
    """The kernel for one side's pages, its table of levels, and how many CTAs a multiprocessor gets."""
    format, defines = stored_format(codec, dtype), sorted_defines(side_defines(codec, dtype))
    trellis = format in STATE_BITS
    kernel = load_kernel(
        "unpack.cu", "unpack", defines, 32 * WARPS, 128 << STATE_BITS[format] if trellis else 0
    )
    return kernel, level_table(format, device), RESIDENT_TRELLIS if trellis else RESIDENT


def _one_side(pages: LayerPages, side: Side) -> tuple[PageCodec, Tensor, Tensor]:
    if side == "k":
        return pages.k_codec, pages.k_packed, pages.k_plain
    return pages.v_codec, pages.v_packed, pages.v_plain


def stored_format(codec: PageCodec, dtype: torch.dtype) -> str:
    """The format's name among KERNEL_FORMATS; "plain" where packed pages hold `dtype` as it is.

    Raises UnsupportedModel where the kernels have no such format, head dim or dtype.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        raise UnsupportedModel(
            f"the GPU kernels read bfloat16 and float16 models, not {dtype}; choose another dtype"
        )
    own = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    name = "plain" if codec.format.name == own else codec.format.name
    if reason := covers(name, codec.head_dim):
        raise UnsupportedModel(f"{reason}; choose another recipe or the reference backend")
    if codec.layout != "tile":
        raise InvalidRequest(f"the GPU kernels read pages in tile layout, not {codec.layout}")
    return name


def side_defines(codec: PageCodec, dtype: torch.dtype) -> dict[str, int]:
    """Macros of cuda/pages.cuh."""
    return {
        "FORMAT": KERNEL_FORMATS.index(stored_format(codec, dtype)),
        "HD": codec.head_dim,
        "KEYS": int(codec.side == "k"),
        "CENTRED": int(codec.centred),
        "HALF": int(dtype == torch.float16),
    } | level_words()


def level_table(format: str, device: torch.device) -> Tensor | None:
    """The levels of a trellis format, int8 on the device."""
    return load_table(int(format[len("turbo")]), device)[0] if format in STATE_BITS else None
