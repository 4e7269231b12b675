"""How many prompt tokens a step has: as many as were asked for or fit, fewer beside sequences that decode."""

from __future__ import annotations

import pytest
import torch

from octavo import Recipe
from octavo.attention.backend import TorchBackend
from octavo.attention.cuda import CudaBackend
from octavo.evaluation.setup import Bench
from octavo.pages.sizing import GroupNeed, ceil_pages, fitting_chunk
from tests.engine.helpers import greedy, random_tokens, tiny_engine
from tests.tiny import tiny_loaded

MIB = 2**20


@pytest.mark.parametrize(
    ("chunk", "beside"), [(4096, 1024), (2400, 600), (2048, 512), (600, 512), (100, 100)]
)
def test_a_step_has_less_of_a_prompt_beside_a_sequence_that_decodes(chunk: int, beside: int) -> None:
    engine = tiny_engine(chunk=chunk, memory="64MB")
    engine.submit(random_tokens(20), greedy(8))
    engine.step()
    engine.submit(random_tokens(1900, 1), greedy(1))
    engine.step()
    assert engine.stats().tokens["computed"] == 20 + beside


def test_a_prompt_alone_has_the_whole_chunk() -> None:
    engine = tiny_engine(chunk=1024, memory="64MB")
    engine.submit(random_tokens(1900), greedy(1))
    engine.step()
    assert engine.stats().tokens["computed"] == 1024


def test_a_chunk_of_one_token_goes_on_beside_others() -> None:
    engine = tiny_engine(chunk=1)
    engine.submit(random_tokens(1), greedy(8))
    engine.step()
    engine.submit(random_tokens(9, 1), greedy(1))
    engine.step()
    assert engine.stats().tokens["computed"] == 2


def test_nobody_says_on_a_cpu() -> None:
    engine = tiny_engine()
    engine.submit(random_tokens(600), greedy(1))
    engine.step()
    assert engine.stats().tokens["computed"] == 512
    assert engine.stats().chunk == 512


@pytest.mark.parametrize("packed", [0, MIB])
def test_a_chunk_fills_a_32nd_of_the_pool_at_most(packed: int) -> None:
    """Pages of 8 MiB in two groups: 8,192 tokens are 1 GiB."""
    needs = [GroupNeed("full", 6 * MIB, packed, None), GroupNeed("sliding", 2 * MIB, 0, 512)]
    found = {gib: fitting_chunk(needs, gib * 2**30, 8192) for gib in (100, 32, 31, 16, 4, 1)}
    assert found == {100: 8192, 32: 8192, 31: 4096, 16: 4096, 4: 1024, 1: 512}
    assert all(ceil_pages(n) * 8 * MIB * 32 <= gib * 2**30 for gib, n in found.items() if n > 512)


def test_a_backend_that_wants_more_gets_what_the_pool_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchBackend, "prompt_chunk", CudaBackend.prompt_chunk)
    assert tiny_engine(memory="512MB").stats().chunk == CudaBackend.prompt_chunk == 8192
    small = tiny_engine(memory="64MB")
    assert small.stats().chunk == 1024
    assert len(small.generate([random_tokens(400)], greedy(3))[0].tokens) == 3


def test_evaluations_run_what_the_backend_wants_whatever_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tiny_loaded("llama"))
    assert bench.engine(Recipe(), tokens=100).stats().chunk == 512
    monkeypatch.setattr(TorchBackend, "prompt_chunk", 8192)
    assert bench.engine(Recipe(), tokens=100).stats().chunk == 8192
    engine = bench.engine(Recipe(), tokens=3000, chunk=3000)
    assert len(torch.cat([part for _, part in engine.score([1] * 3000, chunk=3000)])) == 3000
