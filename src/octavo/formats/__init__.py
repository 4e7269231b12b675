"""KV formats: how 64 tokens of one KV head become bytes, and what that costs."""

from octavo.formats.base import PAGE, Format, Layout, Side
from octavo.formats.codec import PageCodec
from octavo.formats.registry import format_names, get_format
from octavo.formats.rotation import rotation_matrix

__all__ = ["PAGE", "Format", "Layout", "PageCodec", "Side", "format_names", "get_format", "rotation_matrix"]
