"""Decoding through torch.compile: the same logits, and refused where it would do nothing."""

from __future__ import annotations

import pytest

from octavo import Engine, Recipe, Sampling
from octavo.attention.hook import Attention
from octavo.engine.batch import make_batch
from octavo.engine.runner import Runner
from octavo.engine.scheduler import Grant
from octavo.errors import InvalidRequest
from tests.tiny import tiny_loaded


def test_compile_is_refused_where_nothing_would_be_compiled() -> None:
    with pytest.raises(InvalidRequest, match="compile is for decoding on a GPU"):
        Engine(tiny_loaded("llama"), memory="16MB", compile=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_logits_are_those_of_eager_steps() -> None:
    loaded = tiny_loaded("llama")
    engine = Engine(loaded, Recipe("q8_0", "q4_0"), memory="64MB")
    engine.submit("a harbour at dawn " * 12, Sampling(max_tokens=5, ignore_eos=True))
    engine.step()
    core = engine._core
    grants = [Grant(s, 1) for s in core.scheduler.running]
    for grant in grants:
        core.memory.ledger.extend(grant.sequence.holding, grant.sequence.computed + 1)
    batch = make_batch(core.memory.ledger, grants, core.backend, engine.shape.groups)
    eager = core.runner.logits(batch)
    assert eager.numel()
    attention = Attention(engine.shape, core.memory.pools, core.backend, exact_pages=1)
    compiled = Runner(loaded, attention, compile=True).logits(batch, compiled=True)
    assert float((eager - compiled).abs().max()) < 1e-4
