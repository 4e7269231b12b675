"""Models as the engine takes them: weights, tokenizer and shape under one name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from octavo.model.describe import shape_of
from octavo.model.shape import ModelShape
from octavo.model.tokenizer import Tokenizer

__all__ = ["LoadedModel", "shape_of"]


@dataclass
class LoadedModel:
    """A model ready to run.

    module      in eval mode, on its device, in its dtype
    identity    a hash of configuration and weights: pages of models that differ in it never meet
    source      where it came from: a folder, a file or a hub id
    """

    module: nn.Module
    tokenizer: Tokenizer
    shape: ModelShape
    name: str
    identity: str
    source: Path | str
