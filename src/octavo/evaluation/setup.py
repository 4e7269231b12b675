"""One model under several recipes: it is loaded once, and engines are made of it as they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from octavo.attention.dispatch import choose_backend
from octavo.engine.engine import Engine
from octavo.errors import InvalidFile, InvalidRequest
from octavo.evaluation.identity import environment
from octavo.evaluation.sizes import pool_bytes
from octavo.model.device import find_device
from octavo.model.load import LoadedModel, load_model
from octavo.model.source import resolve
from octavo.model.tokenizer import Tokenizer
from octavo.recipe import Recipe
from octavo.recipe.dca import resolve_dca

__all__ = ["Bench", "load_tokenizer", "open_bench"]


@dataclass(frozen=True)
class Bench:
    """A loaded model and how its engines are made."""

    loaded: LoadedModel
    all_quantised: bool = False

    def engine(self, recipe: Recipe, *, tokens: int, chunk: int | None = None, sequences: int = 1) -> Engine:
        """An engine whose pool holds `tokens` for `sequences` together, read by Dual Chunk
        Attention beyond the trained length unless the recipe has it off. At most `chunk` prompt tokens run a
        step, by default as many as keep the device busy, whatever the pool: what is read packed depends on
        it."""
        chunk = chunk or self.prompt_chunk(recipe)
        each = -(-tokens // sequences)
        return Engine(
            self.loaded,
            recipe,
            memory=pool_bytes(self.loaded.shape, tokens, chunk),
            context=each if each > self.loaded.shape.context else None,
            untrained=True,
            chunk=chunk,
            max_sequences=sequences,
            all_quantised=self.all_quantised,
        )

    def prompt_chunk(self, recipe: Recipe) -> int:
        """Prompt tokens of a step that keep the device busy."""
        return choose_backend(self.device, self.loaded.shape, recipe).prompt_chunk

    def dual_chunk(self, recipe: Recipe, tokens: int) -> dict[str, Any] | None:
        """Dual Chunk Attention of engines for sequences of `tokens`, for reports; None where it is off.

        Raises InvalidRequest where it was asked for and such sequences would not use it.
        """
        dca = resolve_dca(recipe, self.loaded.shape.context, tokens)
        if dca is not None and tokens <= dca.chunk:
            raise InvalidRequest(
                f"Dual Chunk Attention was asked for and would not be used: {tokens} tokens do not reach "
                f"beyond the first chunk of {dca.chunk}; take longer sequences or a smaller --dca-chunk"
            )
        return dca.as_dict() if dca is not None else None

    def attention(self, recipe: Recipe, tokens: int) -> dict[str, str]:
        """What hidden states depend on besides model and text: Dual Chunk Attention, where it is on for
        sequences of `tokens`, as it came out and not as it was asked for."""
        dca = resolve_dca(recipe, self.loaded.shape.context, tokens)
        return {"attention": dca.identity} if dca else {}

    def serving(self, recipe: Recipe, *, sequences: int, context: int | None = None) -> Engine:
        """An engine with whatever memory is free, for prompts whose lengths are not known."""
        return Engine(self.loaded, recipe, max_sequences=sequences, context=context, untrained=True)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.loaded.module.parameters()).device
        return device

    def setup(self, **more: Any) -> dict[str, Any]:
        """What a report says about how it was measured."""
        return {
            "model_name": self.loaded.name,
            "model": self.loaded.identity,
            **more,
            **environment(self.device, self.loaded.shape.dtype),
        }


def open_bench(
    model: str | Path, *, device: str = "auto", dtype: str = "auto", all_quantised: bool = False
) -> Bench:
    """Load `model`; device "auto" takes the GPU if there is one."""
    return Bench(load_model(model, device=find_device(device), dtype=dtype), all_quantised)


def load_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of `model` alone: a server has the weights. Raises InvalidFile."""
    source = resolve(model)
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(str(source)))
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{source} has no tokenizer that Transformers can load: {error}") from error
