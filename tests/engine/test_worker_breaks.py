"""What breaks on the engine's thread reaches everybody who waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from octavo import AsyncEngine, Recipe
from octavo.errors import EngineStopped, NotFinite
from tests.engine.helpers import greedy, tiny_engine
from tests.tiny import tiny_loaded

PATIENCE = 30


def dual_engine() -> Any:
    return tiny_engine("llama", Recipe("plain", "plain", dca="on", dca_chunk=64))


def refused(worker: AsyncEngine, *calls: Any) -> None:
    """Every call ends with EngineStopped, now and later, and the thread can be joined."""

    async def play() -> None:
        for call in calls:
            with pytest.raises(EngineStopped):
                await asyncio.wait_for(call(), PATIENCE)
        await asyncio.wait_for(worker.close(), PATIENCE)

    asyncio.run(play())


def test_counts_that_do_not_hold_stop_the_engine() -> None:
    """As when a layer read without its bands: the request that runs hears it, and so do later calls."""
    worker = AsyncEngine(dual_engine())
    worker.engine._core.dual.counts[0, 1] -= 1  # type: ignore[union-attr]
    ask = lambda: worker.generate([1] * 200, greedy(3))  # noqa: E731
    refused(worker, ask, ask, lambda: worker.document([1, 2, 3]))


def test_a_batch_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails behind the count of its rows, ahead of the pass."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("octavo.engine.batch.Batch", broken)
    worker = AsyncEngine(dual_engine())
    ask = lambda: worker.generate([1] * 200, greedy(3))  # noqa: E731
    refused(worker, ask, ask)


def test_a_thread_that_breaks_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = AsyncEngine(tiny_engine())

    def broken() -> Any:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(worker.engine, "unread", broken)
    waiting = lambda: worker.generate([1, 2], greedy(3))  # noqa: E731

    async def play() -> None:
        for _ in range(2):
            with pytest.raises(EngineStopped, match=r"unforeseen|closed"):
                await asyncio.wait_for(waiting(), PATIENCE)
        await asyncio.wait_for(worker.close(), PATIENCE)

    asyncio.run(play())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logprobs", [None, 3])
def test_a_request_without_finite_logits_fails_alone(temperature: float, logprobs: int | None) -> None:
    loaded = tiny_loaded("llama")
    with torch.no_grad():
        loaded.module.get_input_embeddings().weight[200].fill_(float("inf"))
    from octavo import Engine, Sampling

    with Engine(loaded, Recipe("plain", "plain"), memory="16MB") as engine:
        alone = engine.generate([[1, 2, 3]], greedy(5))[0].tokens
        other = engine.stream([1, 2, 3], greedy(5))
        rules = Sampling(max_tokens=5, temperature=temperature, logprobs=logprobs)
        broken = engine.stream([4, 200, 6], rules)
        assert tuple(t for delta in other for t in delta.tokens) == alone
        with pytest.raises(NotFinite, match="token 1 of this answer are not finite"):
            list(broken)
        assert engine.generate([[1, 2, 3]], greedy(5))[0].tokens == alone
        assert engine.stats().requests["failed"] == 1
