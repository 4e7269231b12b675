"""Runs the Transformers model on a flat batch, and turns hidden states into logits."""

from __future__ import annotations

from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch

from octavo.attention.hook import Attention, Reading, install
from octavo.engine.batch import Batch
from octavo.errors import UnsupportedModel
from octavo.model.load import LoadedModel
from octavo.model.modulo import true_positions

__all__ = ["Runner"]

_TURNS: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()
"""A lock for each model: engines that share one, each on its own thread, take turns at it."""


class Runner:
    """One model with our attention installed. Everything runs without autograd.

    With `compile` the dense part of decode steps goes through torch.compile.
    """

    def __init__(self, loaded: LoadedModel, attention: Attention, *, compile: bool = False):
        install(loaded.module)
        self.compiled = compiled(loaded.module) if compile else None
        self.module: Any = loaded.module
        self.turn = _TURNS.setdefault(loaded.module, RLock())
        self.attention = attention
        self.device = next(loaded.module.parameters()).device
        self._head_checked = False

    @torch.inference_mode()
    def logits(self, batch: Batch, *, compiled: bool = False) -> torch.Tensor:
        """Logits [W, V] float32 of the wanted rows; appends the step's keys and values on the way."""
        out: torch.Tensor = self._forward(batch, compiled=compiled).logits[0]
        return out.float()

    @torch.inference_mode()
    def hidden(self, batch: Batch) -> torch.Tensor:
        """Final hidden states [W, hidden] of the wanted rows, as they enter the output head."""
        caught: list[torch.Tensor] = []
        head = self.module.get_output_embeddings()
        with self.turn:
            hook = head.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
            try:
                logits = self._forward(batch).logits[0]
            finally:
                hook.remove()
        if not self._head_checked:
            self._check_head(caught[0][0], logits)
        return caught[0][0]

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, hidden] → logits [n, V] float32, with the model's own scaling and capping."""
        config, head = self.module.config.get_text_config(), self.module.get_output_embeddings()
        logits: torch.Tensor = head(hidden.to(head.weight.device, head.weight.dtype)).float()
        logits = logits / (getattr(config, "logits_scaling", None) or 1.0)
        logits = logits * (getattr(config, "logit_scale", None) or 1.0)
        cap = getattr(config, "final_logit_softcapping", None)
        return cap * torch.tanh(logits / cap) if cap else logits

    def _forward(self, batch: Batch, *, compiled: bool = False) -> Any:
        with self.turn:
            return self._pass(batch, compiled)

    def _pass(self, batch: Batch, compiled: bool) -> Any:
        dual = self.attention.dual
        turns = None
        if dual is not None and batch.reach is not None:
            turns = dual.step(batch.positions[0], batch.reach, batch.bands)
        reading = Reading(self.attention, batch.plans, batch.segments, turns)
        self.attention.reading = reading
        compiled = compiled and self.compiled is not None
        module = self.compiled if compiled else self.module
        assert module is not None
        try:
            with dual.positions() if dual is not None else true_positions(self.module):
                return module(
                    input_ids=batch.ids,
                    position_ids=batch.positions,
                    use_cache=False,
                    logits_to_keep=batch.wanted,
                    batch=id(self.attention) if compiled else reading,
                )
        except BaseException:
            if dual is not None:
                dual.restart()
            raise

    def _check_head(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        gap = float((self.head(hidden) - logits.float()).abs().max())
        if gap > 1e-2 * max(1.0, float(logits.abs().max())):
            kind = type(self.module).__name__
            raise UnsupportedModel(
                f"{kind} does something to its logits after the output head that is not known here "
                f"(they differ by {gap:.3g}); scoring this model needs that step added to Runner.head"
            )
        self._head_checked = True


def compiled(module: torch.nn.Module) -> Any:
    """Inductor is imported only where it is wanted: that takes seconds."""
    from octavo.engine.compiled import compile_dense

    return compile_dense(module)
