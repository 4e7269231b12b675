"""Formats of some layers, in words: "0-1=q8_0,27=q8_0:turbo4".

A layer is a number counted from 0, or a range with both ends included; formats are "k:v", or "k" for both
sides. The canonical text is sorted and names both sides: equal settings are equal text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise

from octavo.errors import InvalidRequest
from octavo.formats.registry import get_format

__all__ = ["LayerFormats", "canonical", "layers_of", "parse_layers"]

_RANGE = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
_HOW = 'write layers as in "0-3=q8_0:q4_0,29=q8_0"'
_HOW_IN_FILES = 'write layers as in "0-3" = "q8_0:q4_0"'


@dataclass(frozen=True)
class LayerFormats:
    """Layers [first, last], both included, and their formats."""

    first: int
    last: int
    k: str
    v: str

    @property
    def where(self) -> str:
        """ "4" or "0-3"."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer <= self.last

    def __str__(self) -> str:
        return f"{self.where}={self.k}:{self.v}"


@cache
def parse_layers(text: str) -> tuple[LayerFormats, ...]:
    """The layers of a text, sorted. Raises InvalidRequest, or UnknownName for an unknown format."""
    parts = [part.partition("=") for part in text.split(",")] if text.strip() else []
    return _in_order([_parse(where, pair, _HOW) for where, _, pair in parts])


def canonical(layers: str | Mapping[str, str]) -> str:
    """The canonical text of a text, or of ranges with their formats, as files have them."""
    if isinstance(layers, str):
        return ",".join(map(str, parse_layers(layers)))
    return ",".join(map(str, _in_order([_parse(*layer, _HOW_IN_FILES) for layer in layers.items()])))


def layers_of(pairs: Sequence[str], usual: str) -> str:
    """The canonical text of one "k:v" for each layer of a model, without the layers that have `usual`."""
    runs, n = {}, 0
    for pair, same in groupby(pairs):
        stop = n + len(list(same))
        if pair != usual:
            runs[f"{n}-{stop - 1}"] = pair
        n = stop
    return canonical(runs)


def _in_order(found: list[LayerFormats]) -> tuple[LayerFormats, ...]:
    found = sorted(found, key=lambda part: part.first)
    for a, b in pairwise(found):
        if b.first <= a.last:
            raise InvalidRequest(f"layers {a.where} and {b.where} overlap; give each layer one pair")
    return tuple(found)


def _parse(where: str, pair: str, how: str) -> LayerFormats:
    match = _RANGE.fullmatch(where.strip())
    if match is None:
        raise InvalidRequest(f"{where.strip()!r} is no layer or range of layers, which count from 0; {how}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise InvalidRequest(f"layers {where.strip()} run backwards; write {last}-{first}")
    k, colon, v = (part.strip() for part in pair.partition(":"))
    if not k or (colon and not v):
        raise InvalidRequest(f"layers {where.strip()} have no formats; {how}")
    for name in (k, v or k):
        get_format(name)
    return LayerFormats(first, last, k, v or k)
