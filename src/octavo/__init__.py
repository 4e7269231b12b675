"""Octavo: long-context LLM inference on a compressed, shared, paged KV pool."""

from octavo.engine.documents import Document
from octavo.engine.engine import Engine
from octavo.engine.requests import Completion, Delta, Sampling
from octavo.engine.stats import Stats
from octavo.engine.worker import AsyncEngine
from octavo.errors import OctavoError
from octavo.recipe import Recipe

__all__ = ["AsyncEngine", "Completion", "Delta", "Document", "Engine", "OctavoError", "Recipe", "Sampling", "Stats"]
