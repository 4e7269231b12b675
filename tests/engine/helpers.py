"""Engines on tiny models, and what Transformers itself says about the same tokens."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from octavo import Engine, Recipe, Sampling
from octavo.attention.backend import TorchBackend
from octavo.engine.ahead import Ahead
from octavo.engine.core import Core
from octavo.engine.scheduler import Grant
from octavo.pages.ledger import Holding
from tests.pages.audit import audit
from tests.tiny import tiny, tiny_loaded

__all__ = [
    "PLAIN",
    "Eager",
    "audit_engine",
    "chunked_logits",
    "greedy",
    "live",
    "logits_of",
    "noise",
    "prefill_then_decode",
    "random_tokens",
    "recorded",
    "rows_of_passes",
    "tiny_engine",
    "transformers_logits",
]  # fmt: skip

PLAIN = Recipe("plain", "plain")


def tiny_engine(
    family: str = "llama", recipe: Recipe = PLAIN, *, chat: bool = True, **settings: Any
) -> Engine:
    """An engine over a tiny model with random weights, the same for the same family."""
    return Engine(
        tiny_loaded(family, chat=chat), recipe, **{"memory": "16MB", "max_sequences": 8, **settings}
    )


def greedy(max_tokens: int, **rules: Any) -> Sampling:
    """Exactly `max_tokens` most likely tokens."""
    return Sampling(max_tokens=max_tokens, ignore_eos=True, **rules)


def random_tokens(n: int, seed: int = 0) -> list[int]:
    """n byte tokens."""
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def rows_of_passes(engine: Engine) -> list[int]:
    """Rows of every pass for hidden states from now on."""
    rows: list[int] = []
    hidden = engine._core.runner.hidden

    def counting(batch: Any) -> torch.Tensor:
        rows.append(batch.ids.shape[1])
        return hidden(batch)

    engine._core.runner.hidden = counting  # type: ignore[method-assign]
    return rows


class Eager:
    """Decodes without graphs, but as far ahead of the host as they do."""

    def __init__(self, engine: Engine):
        self.core = engine._core
        self.core.ahead = Ahead(self.core.scheduler, self)
        self.steps = 0

    def run(self, grants: list[Grant], ids: torch.Tensor | None = None) -> torch.Tensor | None:
        core = self.core
        batch = core.batch(grants)
        if ids is not None:
            self.steps += 1
            batch = replace(batch, ids=ids[None], wanted=torch.arange(len(grants)))
        return core.runner.logits(batch)

    def clear(self) -> None:
        """Nothing was captured."""


def decode_grants(engine: Engine) -> list[Grant]:
    """The next step of all that decode, with pages for it; one begun ahead is dropped."""
    core = engine._core
    core.ahead.take([])
    grants = [Grant(s, 1) for s in core.scheduler.running]
    for grant in grants:
        core.memory.ledger.extend(grant.sequence.holding, grant.sequence.computed + 1)
    return grants


# what Transformers says


@cache
def model(family: str, attention: str) -> Any:
    own = tiny(family)
    own.set_attn_implementation(attention)
    return own


def transformers_logits(family: str, tokens: Sequence[int], attention: str = "eager") -> torch.Tensor:
    """Logits [n, V] of one pass over `tokens` without a cache."""
    return logits_of(model(family, attention), tokens)


@torch.inference_mode()
def logits_of(module: Any, tokens: Sequence[int]) -> torch.Tensor:
    out: torch.Tensor = module(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    return out


@torch.inference_mode()
def chunked_logits(module: Any, tokens: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """The same through Transformers' own cache, in chunks of the given sizes."""
    past = DynamicCache(config=module.config)
    parts = []
    with warnings.catch_warnings():  # 5.24 renames the argument; 5.17 knows only the old name
        warnings.simplefilter("ignore", FutureWarning)
        for part in torch.split(torch.tensor([list(tokens)]), list(sizes), 1):
            parts.append(module(input_ids=part, past_key_values=past, use_cache=True).logits[0].float())
    return torch.cat(parts)


def prefill_then_decode(n: int, chunk: int = 64, decoded: int = 12) -> list[int]:
    """Chunk sizes that add up to n: whole chunks, the rest, then one token at a time."""
    prefill = n - min(decoded, n)
    return [chunk] * (prefill // chunk) + [prefill % chunk] * (prefill % chunk > 0) + [1] * min(decoded, n)


def noise(family: str, tokens: Sequence[int], eager: torch.Tensor, decoded: int = 16) -> float:
    """How far Transformers is from itself: eager against its own cache, and SDPA where there is one."""
    cached = chunked_logits(model(family, "eager"), tokens, prefill_then_decode(len(tokens), decoded=decoded))
    gaps = [float((cached - eager).abs().max())]
    if family not in ("gemma2", "gpt_oss"):  # soft caps and sinks have no SDPA
        gaps.append(float((transformers_logits(family, tokens, "sdpa") - eager).abs().max()))
    return max(gaps)


# looking into the engine


@contextmanager
def recorded(engine: Engine) -> Iterator[dict[int, list[torch.Tensor]]]:
    """Logits [V] behind every sampled token, by request, while the context lasts."""
    core, rows = engine._core, {}  # type: ignore[var-annotated]
    settle = core._settle

    def spy(grants: list[Grant], logits: torch.Tensor) -> Any:
        wanted = [g.sequence.id for g in grants if g.n == g.sequence.pending and not g.sequence.pinned]
        for id, row in zip(wanted, logits, strict=True):
            rows.setdefault(id, []).append(row.clone())
        return settle(grants, logits)

    core._settle = spy  # type: ignore[method-assign]
    try:
        yield rows
    finally:
        del core._settle


def holdings(core: Core) -> list[Holding]:
    queued = [*core.scheduler.running, *core.scheduler.waiting]
    return [s.holding for s in queued] + [d.sequence.holding for d in core.documents.values() if d.ready]


def audit_engine(engine: Engine) -> None:
    """Pages are conserved, and only running requests and documents hold any."""
    audit(engine._core.memory.ledger, holdings(engine._core))


def live(engine: Engine) -> int:
    """Pages that somebody holds, all groups and kinds together."""
    return sum(kind["live"] for group in engine.stats().pages.values() for kind in group.values())


@contextmanager
def noisy_reference(share: float = 5e-3) -> Iterator[None]:
    """The reference's outputs are off by what int8 arithmetic may be: how far a model carries that differs by
    family; gpt_oss turns 0.2 % into a KLD of 0.009."""
    attend, generator = TorchBackend.attend, torch.Generator("cuda").manual_seed(7)

    def noisy(self: TorchBackend, *arguments: Any) -> torch.Tensor:
        out = attend(self, *arguments)
        size = share * out.norm(dim=-1, keepdim=True) / out.shape[-1] ** 0.5
        return out + size * torch.randn(out.shape, generator=generator, device=out.device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchBackend, "attend", noisy)
        yield
