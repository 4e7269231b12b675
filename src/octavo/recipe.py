"""The Recipe: which formats the cache of a model is kept in, and how."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from octavo.errors import InvalidRequest, unknown
from octavo.formats.registry import get_format

__all__ = ["Recipe"]


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

    def __post_init__(self) -> None:
        get_format(self.k)
        get_format(self.v)
        if self.recent < 0:
            raise InvalidRequest(f"recent is {self.recent}; it counts tokens and must be 0 or more")
        if self.exact_pages < 0:
            raise InvalidRequest(f"exact_pages is {self.exact_pages}; it counts pages and must be 0 or more")
        for name in ("k_gain", "v_gain"):
            if getattr(self, name) not in ("norm", "mmse", "unbiased"):
                raise unknown(name, getattr(self, name), ("norm", "mmse", "unbiased"))

    @property
    def packs(self) -> bool:
        """Whether any page is ever packed."""
        return self.k != "plain" or self.v != "plain"

    @classmethod
    def from_pair(cls, pair: str, **settings: Any) -> Recipe:
        """A recipe from "k:v", or "k" for both sides."""
        k, _, v = pair.partition(":")
        return cls(k=k, v=v or k, **settings)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Recipe:
        """A recipe from a mapping; unknown settings are refused."""
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                raise unknown("recipe setting", name, known)
        return cls(**settings)

    def with_(self, **changes: Any) -> Recipe:
        """A copy with `changes`."""
        return replace(self, **changes)

    @property
    def pair(self) -> str:
        """"k:v", as the command line writes it."""
        return f"{self.k}:{self.v}"
