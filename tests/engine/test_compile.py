"""Decoding through torch.compile: the same logits, and refused where it would do nothing."""

from __future__ import annotations

import pytest
import torch

from octavo import Engine, Recipe, Sampling
from octavo.attention.hook import Attention
from octavo.engine.runner import Runner
from octavo.engine.scheduler import Grant
from octavo.errors import InvalidRequest
from tests.tiny import tiny_loaded


def test_compile_is_refused_where_nothing_would_be_compiled() -> None:
    with pytest.raises(InvalidRequest, match="compile is for decoding on a GPU"):
        Engine(tiny_loaded("llama"), memory="16MB", compile=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("family", "dtype", "tolerance", "products"),
    [
        ("llama", torch.float32, 1e-5, []),
        ("llama", torch.bfloat16, 2e-2, [3, 1, 2, 1, 3, 1, 2, 1, 1]),
        ("qwen2", torch.bfloat16, 2e-2, [3, 1, 2, 1, 3, 1, 2, 1, 1]),
    ],
)
def test_compiled_logits_are_those_of_eager_steps(
    family: str, dtype: torch.dtype, tolerance: float, products: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of a row in bfloat16 are found, and those of the same row go together."""
    from torch._inductor.utils import fresh_cache

    from octavo.engine import compiled

    torch._dynamo.reset()
    found: list[int] = []
    merge = compiled.merge

    def counted(graph: torch.fx.Graph, together: list[compiled.Product]) -> None:
        found.append(len(together))
        merge(graph, together)

    monkeypatch.setattr(compiled, "merge", counted)
    loaded = tiny_loaded(family)
    loaded.module.to(dtype)
    object.__setattr__(loaded.shape, "dtype", str(dtype).removeprefix("torch."))
    engine = Engine(loaded, Recipe("q8_0", "q4_0"), memory="64MB")
    engine.submit("a harbour at dawn " * 12, Sampling(max_tokens=5, ignore_eos=True))
    engine.step()
    core = engine._core
    grants = [Grant(s, 1) for s in core.scheduler.running]
    for grant in grants:
        core.memory.ledger.extend(grant.sequence.holding, grant.sequence.computed + 1)
    batch = core.batch(grants)
    eager = core.runner.logits(batch)
    assert eager.numel()
    attention = Attention(engine.shape, core.memory.pools, core.backend, exact_pages=1)
    with fresh_cache():
        logits = Runner(loaded, attention, compile=True).logits(batch, compiled=True)
    assert float((eager - logits).norm() / eager.norm()) < tolerance
    assert found == products
