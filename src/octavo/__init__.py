"""Octavo: long-context LLM inference on a compressed, shared, paged KV pool.

Names are imported when they are first used: `octavo --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.engine.documents import Document
    from octavo.engine.engine import Engine
    from octavo.engine.requests import Completion, Delta, Sampling
    from octavo.engine.stats import Stats
    from octavo.engine.worker import AsyncEngine
    from octavo.errors import OctavoError
    from octavo.recipe import Recipe

__all__ = [
    "AsyncEngine",
    "Completion",
    "Delta",
    "Document",
    "Engine",
    "OctavoError",
    "Recipe",
    "Sampling",
    "Stats",
]

_HOMES = {
    "AsyncEngine": "octavo.engine.worker",
    "Completion": "octavo.engine.requests",
    "Delta": "octavo.engine.requests",
    "Document": "octavo.engine.documents",
    "Engine": "octavo.engine.engine",
    "OctavoError": "octavo.errors",
    "Recipe": "octavo.recipe",
    "Sampling": "octavo.engine.requests",
    "Stats": "octavo.engine.stats",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
