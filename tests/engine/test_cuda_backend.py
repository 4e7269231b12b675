"""The GPU backend on the CPU: what its kernels are told to do is done in PyTorch, and gives right logits."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo import Engine
from octavo.attention import cuda, fused, prefill
from octavo.attention.cuda import CudaBackend
from octavo.attention.turn import band_queries
from octavo.engine import graphs
from octavo.engine.graphs import DecodeGraph, DecodeGraphs
from octavo.kernels.decode import DevicePlan
from octavo.kernels.plan import TILE, WIDE_TILE
from octavo.model.shape import LayerGroup
from octavo.pages.bands import Turns
from octavo.pages.store import LayerPages
from tests.engine.helpers import greedy, random_tokens, recorded
from tests.engine.test_dca import BEYOND, check_answers, dual, gap, right, scored

Part = tuple[Tensor, Tensor]


def append_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_plain: Tensor,
    v_plain: Tensor,
    slots: Tensor,
    offsets: Tensor,
    *,
    turns: Turns | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    k_plain[slots, :, offsets], v_plain[slots, :, offsets] = k, v
    return (q if turns is None else band_queries(q, turns)), k, v


def decode(q: Tensor, pages: LayerPages, plan: DevicePlan, *, scale: float, softcap: float,
           sinks: Tensor | None, rows: int | None) -> Tensor:  # fmt: skip
    """Every output row walks its links, as the kernels do; rows of padding have none."""
    view, group = plan.views, plan.group
    heads, d = q.shape[1:]
    out = torch.zeros(plan.outputs, heads, d)
    narrow = view["runs"].view(-1, 4), view["rows"].view(-1, TILE), TILE
    wide = view["wide_runs"].view(-1, 4), view["wide_rows"].view(-1, WIDE_TILE), WIDE_TILE
    for place in range(plan.outputs * group):
        links = view["links"][int(view["offsets"][place]) : int(view["offsets"][place + 1])].tolist()
        for side in range(heads // group if links else 0):
            head = side * group + place % group
            scores, values = [], []
            for link in links:
                (runs, tiles, tile), at = (narrow, link) if link >= 0 else (wide, ~link)
                start, count, first, _ = runs[at // tile].tolist()
                query = int(tiles[at // tile, at % tile])
                assert query & 255 == place % group
                slots = ~view["addresses"][start : start + count].long()
                at = first + torch.arange(count * 64)
                low, high = view["sees"][2 * (query >> 8) : 2 * (query >> 8) + 2].tolist()
                seen = (at >= low) & (at < high)
                k, v = (x[slots, side].flatten(0, 1)[seen] for x in (pages.k_plain, pages.v_plain))
                scores.append(k @ q[query >> 8, head] * scale)
                values.append(v)
            all_scores = torch.cat(scores)
            if softcap:
                all_scores = softcap * torch.tanh(all_scores / softcap)
            if sinks is not None:
                all_scores = torch.cat((all_scores, sinks[head : head + 1]))
            found = torch.cat(values)
            out[place // group, head] = all_scores.softmax(0)[: len(found)] @ found
    return out


def unpack_pages(pages: LayerPages, addresses: Tensor, side: str) -> Tensor:
    data = pages.k_plain if side == "k" else pages.v_plain
    return data[~addresses.long()].transpose(0, 1).flatten(1, 2)


def blend(acc: Tensor, lse: Tensor, out: Tensor, other: Tensor) -> None:
    total, both = prefill.merge((acc, lse), (out, other))
    acc.copy_(total)
    lse.copy_(both)


class Replayed(DecodeGraph):
    """Runs again over the same buffers where a graph would be replayed."""

    def _capture(self, pool: Any) -> None:
        self.graph = SimpleNamespace(replay=self.replay)
        self.replay()

    def replay(self) -> None:
        self.logits = self.owner.runner.logits(self.batch)


Maker = Callable[..., Engine]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Maker:
    """An engine on the GPU backend, its kernels in PyTorch."""
    for module, function in ((cuda, append_rows), (cuda, decode), (prefill, unpack_pages), (prefill, blend)):
        monkeypatch.setattr(module, function.__name__, function)
    monkeypatch.setattr(cuda, "layer_pool", lambda pages: pages)
    monkeypatch.setattr(prefill, "fused_attention", lambda *_: fused.by_tiles)
    monkeypatch.setattr(prefill, "windowed_attention", lambda *_: fused.by_tiles_in_window)
    monkeypatch.setattr(prefill, "STRETCH", 3)
    monkeypatch.setattr(CudaBackend, "graphs", False)
    monkeypatch.setattr(
        "octavo.engine.engine.choose_backend", lambda device, *_, **__: CudaBackend(device, "test")
    )
    return dual


@pytest.fixture
def graphed(make: Maker, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """The same, and decode steps run on the fixed buffers of graphs."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    event = SimpleNamespace(synchronize=lambda: None, record=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(graphs, "DecodeGraph", Replayed)
    monkeypatch.setattr(CudaBackend, "graphs", True)
    return make


@pytest.mark.parametrize("family", BEYOND)
def test_prefill_in_steps_of_any_length(family: str, make: Maker) -> None:
    """Parts of a step are wide or short, as edges cut them."""
    tokens = tuple(random_tokens(330, 8))
    exact, most = right(family, tokens, 64)
    engine = make(family, 64)
    for chunk in (5, 67, 100, 512) if family in ("llama", "gemma3") else (100,):
        assert gap(scored(engine, tokens, chunk), exact) <= most, chunk
    assert engine.stats().backend["name"] == "cuda" and engine.stats().dca is not None


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma2"])
def test_short_and_long_prompts_together(family: str, make: Maker) -> None:
    prompts = [random_tokens(n, n) for n in (20, 125, 380, 64, 190, 250, 1)]
    check_answers(family, make(family, 64, chunk=100), prompts, 64, 5)


def test_forks_of_a_document_over_an_edge(make: Maker) -> None:
    engine, text = make("llama", 128), random_tokens(330, 3)
    questions = [random_tokens(n, n) for n in (1, 54, 60, 200)]
    with engine.document(text) as held, recorded(engine) as rows:
        answers = engine.generate(questions, greedy(4), document=held)
    for question, answer in zip(questions, answers, strict=True):
        exact, most = right("llama", (*text, *question, *answer.tokens), 128)
        assert gap(torch.stack(rows[answer.request]), exact[len(text) + len(question) - 1 : -1]) <= most


@pytest.mark.parametrize("family", ["llama", "gemma3", "smollm3"])
def test_decoding_on_the_buffers_of_graphs(family: str, graphed: Maker) -> None:
    """Five sequences on the buffers of eight, over edges; rows of padding count for no further band."""
    engine = graphed(family, 64)
    lengths = (10, 62, 125, 190, 300)
    check_answers(family, engine, [random_tokens(n, n) for n in lengths], 64, 6)
    assert engine._core.graphs is not None and (8, 8) in {key[:2] for key in engine._core.graphs._graphs}
    rows = engine.stats().dca["rows"]  # type: ignore[index]
    assert list(rows.values()) == [sum(max(0, n + 5 - 64 * band) for n in lengths) for band in range(3)]


@pytest.mark.parametrize("fixture", ["make", "graphed"])
def test_what_many_read_is_a_wide_run(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents of one document; graphs for steps with wide runs and without."""
    monkeypatch.setattr(cuda, "wide_from", lambda _: 9)
    monkeypatch.setattr(cuda, "SAVES", -math.inf)
    loads: list[int] = []
    load = DevicePlan.load
    monkeypatch.setattr(
        DevicePlan, "load", lambda own, plan: (loads.append(len(plan.wide_runs)), load(own, plan))
    )
    engine, text = request.getfixturevalue(fixture)("llama", 128), random_tokens(330, 3)
    questions = [random_tokens(n, n) for n in (1, 5, 3, 8, 2)]
    with engine.document(text) as held, recorded(engine) as rows:
        answers = engine.generate(questions, greedy(4), document=held)
    for question, answer in zip(questions, answers, strict=True):
        exact, most = right("llama", (*text, *question, *answer.tokens), 128)
        assert gap(torch.stack(rows[answer.request]), exact[len(text) + len(question) - 1 : -1]) <= most
    engine.generate([random_tokens(50)], greedy(3))
    assert max(loads) > 0 == loads[-1]
    keys = engine._core.graphs._graphs if fixture == "graphed" else {(True,), (False,)}  # type: ignore[union-attr]
    assert {key[-1] for key in keys} == {True, False}, "a graph without wide runs launches none"


def test_a_closed_engine_holds_no_graphs(graphed: Maker) -> None:
    engine = graphed("llama", 64)
    engine.generate([random_tokens(10)], greedy(4))
    held = engine._core.graphs
    assert held is not None and held._graphs
    engine.close()
    assert not held._graphs and engine._core.graphs is None, "they go at once, not as garbage"


def test_nothing_is_collected_while_a_graph_is_captured() -> None:
    class Ring:
        def __init__(self) -> None:
            self.me = self

    ring = weakref.ref(Ring())
    with graphs.undisturbed():
        kept = [[n] for n in range(5000)]  # enough to start a collection
        with graphs.undisturbed():  # another engine's
            pass
        assert ring() is not None and not gc.isenabled()
    assert gc.isenabled() and len(kept) == 5000
    gc.collect()
    assert ring() is None


def test_a_step_that_no_graph_has_room_for(graphed: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph holds eight pages; the step that reads more runs without it."""

    def small(
        owner: DecodeGraphs, group: LayerGroup, size: int, wide: bool, device: torch.device
    ) -> DevicePlan:
        rows = {"max_tokens": 3 * size, "group": group.queries_per_head}
        return DevicePlan(max_runs=99, max_pages=8, **rows, device=device)

    monkeypatch.setattr(graphs, "device_plan", small)
    engine = graphed("llama", 64)
    check_answers("llama", engine, [random_tokens(n, n) for n in (100, 253, 62)], 64, 6)


def test_without_bands_it_is_as_before(make: Maker) -> None:
    """Within one chunk there is one set of queries."""
    tokens = tuple(random_tokens(200, 4))
    exact, most = right("gemma3", tokens, 2048)
    assert gap(scored(make("gemma3", 2048), tokens, 70), exact) <= most
