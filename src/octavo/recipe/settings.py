"""The Recipe: which formats the cache of a model is kept in, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from octavo.errors import InvalidRequest, unknown
from octavo.formats.base import PAGE
from octavo.formats.registry import get_format
from octavo.model.shape import ModelShape
from octavo.recipe.layers import LayerFormats, canonical, parse_layers
from octavo.recipe.model import ModelFacts
from octavo.recipe.scales import Scales

__all__ = ["Recipe"]


def typed(name: str, value: Any, kind: type) -> Any:
    """The value, if it is of that type; a whole number passes for a real one. Raises InvalidRequest."""
    if type(value) is int and kind is float and abs(value) < 1e6:
        return float(value)
    if type(value) is not kind:
        raise InvalidRequest(f"recipe setting {name} is {value!r}; it is of type {kind.__name__}")
    return value


@dataclass(frozen=True)
class Recipe:
    """Settings of the KV cache, the same for every request of an engine.

    k, v          formats of keys and values (`octavo formats`); "plain" keeps the model's dtype, unrotated
    recent        tokens that must follow a complete page before it is packed
    exact_pages   pages at a sequence's start that are never packed: the attention sink lives there
    rotate        Hadamard rotation of quantised sides
    centre        keep each page's mean key apart, in 8 bits (quantised keys only)
    k_gain, v_gain  gain rule of the turbo formats: norm, mmse or unbiased
    sliding       quantise sliding-window layers too; they are small, so plain by default
    dca           Dual Chunk Attention beyond the trained length: auto (if the context exceeds it), on, off
    dca_chunk     its chunk length in tokens, a multiple of 64; 0: a quarter of the trained length
    dca_mscale    its attention temperature: scores are multiplied by the square
    layers        formats of single layers: "0-1=q8_0,29=q8_0:turbo4"; the others have k and v
    scales        channel scales of the keys of layers whose keys are quantised (`octavo calibrate`)
    model         the model it was made for; engines of another one refuse it
    """

    k: str = "q8_0"
    v: str = "q8_0"
    recent: int = 64
    exact_pages: int = 1
    rotate: bool = True
    centre: bool = True
    k_gain: str = "norm"
    v_gain: str = "unbiased"
    sliding: bool = False
    dca: str = "auto"
    dca_chunk: int = 0
    dca_mscale: float = 1.0
    layers: str = ""
    scales: Scales | None = None
    model: ModelFacts | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.name in self.names():
                object.__setattr__(self, f.name, typed(f.name, getattr(self, f.name), type(f.default)))
        object.__setattr__(self, "layers", canonical(self.layers))
        get_format(self.k)
        get_format(self.v)
        if self.recent < 0:
            raise InvalidRequest(f"recent is {self.recent}; it counts tokens and must be 0 or more")
        if self.exact_pages < 0:
            raise InvalidRequest(f"exact_pages is {self.exact_pages}; it counts pages and must be 0 or more")
        gains = ("norm", "mmse", "unbiased")
        for name, known in (("k_gain", gains), ("v_gain", gains), ("dca", ("auto", "on", "off"))):
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)
        if self.dca_chunk < 0 or self.dca_chunk % PAGE:
            raise InvalidRequest(
                f"dca_chunk is {self.dca_chunk}; it must be a multiple of {PAGE} tokens, so that a page lies "
                "in one chunk, or 0 for a quarter of the trained length"
            )
        if not 0.1 <= self.dca_mscale <= 10:
            raise InvalidRequest(
                f"dca_mscale is {self.dca_mscale}; scores are multiplied by its square: take 0.1 to 10, or 1"
            )

    @property
    def overrides(self) -> tuple[LayerFormats, ...]:
        """The layers with formats of their own, in order."""
        return parse_layers(self.layers)

    def formats(self, layer: int) -> tuple[str, str]:
        """Formats of the keys and the values of one layer."""
        return next(((part.k, part.v) for part in self.overrides if layer in part), (self.k, self.v))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every (k, v) that some layer may have, the usual one first."""
        return tuple(dict.fromkeys([(self.k, self.v), *((part.k, part.v) for part in self.overrides)]))

    @property
    def packs(self) -> bool:
        """Whether any page is ever packed."""
        return any(pair != ("plain", "plain") for pair in self.pairs)

    @property
    def quantises_keys(self) -> bool:
        """Whether the keys of any layer are: only those have scales."""
        return any(get_format(k).quantised for k, _ in self.pairs)

    @property
    def pair(self) -> str:
        """ "k:v", as the command line writes it; "+layers" and "+scales" say that there is more."""
        scaled = self.scales and self.quantises_keys
        return f"{self.k}:{self.v}" + ("+layers" if self.layers else "") + ("+scales" if scaled else "")

    @property
    def dca_words(self) -> dict[str, str]:
        """The settings of Dual Chunk Attention as words: what plain pages under them depend on."""
        return {name: str(getattr(self, name)) for name in ("dca", "dca_chunk", "dca_mscale")}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The settings that words can say: all but scales and model, which come from a file."""
        return tuple(f.name for f in fields(cls) if f.name not in ("scales", "model"))

    @classmethod
    def from_pair(cls, pair: str, **settings: Any) -> Recipe:
        """A recipe from "k:v", or "k" for both sides. Raises InvalidRequest where one is missing."""
        k, colon, v = pair.partition(":")
        if not k or (colon and not v):
            raise InvalidRequest(f"{pair!r} is no pair of formats; write k:v, or k for both sides")
        return cls(k=k, v=v or k, **settings)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Recipe:
        """A recipe from a mapping; unknown settings are refused, and values of a wrong type."""
        for name in settings:
            if name not in cls.names():
                raise unknown("recipe setting", name, cls.names())
        return cls(**settings)

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """The recipe of a TOML file. Raises InvalidFile, or UnknownName for a key that does not exist."""
        from octavo.recipe.file import RecipeFile

        return RecipeFile.read(path).recipe

    def as_dict(self) -> dict[str, Any]:
        """All settings as plain data, scales by their hash: recipes that differ here keep other pages."""
        return {name: getattr(self, name) for name in self.names()} | {
            "scales": repr(self.scales) if self.scales else None
        }

    def with_(self, **changes: Any) -> Recipe:
        """A copy with `changes`. A new k or v holds for every layer, unless `layers` is changed too."""
        if {"k", "v"} & set(changes):
            changes.setdefault("layers", "")
        return replace(self, **changes)

    def check(self, shape: ModelShape, name: str = "this model", weights: str = "") -> None:
        """Raise InvalidRequest unless the recipe fits a model of that shape and weights ("": unknown)."""
        if self.model is not None:
            self.model.check(ModelFacts.of(shape, name, weights))
        count = len(shape.layers)
        for part in self.overrides:
            if part.last >= count:
                raise InvalidRequest(
                    f"the recipe names layer {part.last}, but {name} has {count} layers, 0 to {count - 1}"
                )
            if not self.sliding and all(shape.layers[n].window for n in range(part.first, part.last + 1)):
                raise InvalidRequest(
                    f"the recipe names layers {part.where}, which slide over windows and stay plain; "
                    "leave them out or set sliding"
                )
        for layer in self.scales.layers if self.scales else ():
            self._check_scales(layer, shape)

    def _check_scales(self, layer: int, shape: ModelShape) -> None:
        assert self.scales is not None
        scale = self.scales.of(layer)
        assert scale is not None
        if layer >= len(shape.layers):
            raise InvalidRequest(
                f"the recipe scales layer {layer}, but the model has {len(shape.layers)} layers"
            )
        own = shape.layers[layer]
        if tuple(scale.shape) != (own.kv_heads, own.head_dim):
            raise InvalidRequest(
                f"the recipe's scales of layer {layer} are {list(scale.shape)}, but the model has "
                f"{own.kv_heads} KV heads of {own.head_dim}; make others with octavo calibrate"
            )
