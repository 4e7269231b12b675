"""The formats by name."""

from __future__ import annotations

from octavo.errors import unknown
from octavo.formats.base import Format
from octavo.formats.ggml import GGML
from octavo.formats.plain import PLAIN
from octavo.formats.trellis import TRELLIS
from octavo.formats.turbo import TURBO

__all__ = ["format_names", "get_format"]

_FORMATS: dict[str, Format] = {format.name: format for format in (*PLAIN, *GGML, *TURBO, *TRELLIS)}


def format_names() -> tuple[str, ...]:
    """Every format's name, from most bits to fewest within each family."""
    return tuple(_FORMATS)


def get_format(name: str) -> Format:
    """The format of that name; UnknownName suggests the nearest where there is none."""
    if name not in _FORMATS:
        raise unknown("format", name, _FORMATS)
    return _FORMATS[name]
