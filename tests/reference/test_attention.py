"""Attention over pages against a dense float64 softmax over the decoded values, in every shape of step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest
import torch

from octavo.formats.base import PAGE
from octavo.formats.codec import PageCodec
from octavo.formats.registry import get_format
from octavo.pages.plan import Segment, make_plan, shared_runs
from octavo.pages.store import LayerPages
from octavo.reference import attention
from octavo.reference.attention import attend

TIGHT = 2e-5
"""float32 sums over identical bytes against float64 ones, for values around 1."""


@dataclass(frozen=True)
class Row:
    """One sequence of a step: tokens stored, new tokens, and a letter for each complete page it may share.

    Two sequences share a page where their letters agree up to it. Capital letters are packed pages.
    """

    computed: int
    n: int
    shared: str = ""


@dataclass
class World:
    """A layer's pages with every slot nobody owns poisoned, and what each sequence should read."""

    g: int
    d: int
    codecs: tuple[PageCodec, PageCodec]
    dtype: torch.dtype
    seed: int = 0
    plain: tuple[torch.Tensor, torch.Tensor] = field(init=False)
    packed: tuple[torch.Tensor, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        shape = (200, self.g, PAGE, self.d)
        self.plain = (
            torch.full(shape, torch.nan, dtype=self.dtype),
            torch.full(shape, torch.nan, dtype=self.dtype),
        )
        k, v = (torch.full((60, self.g, c.nbytes), 0xFF, dtype=torch.uint8) for c in self.codecs)
        self.packed = (k, v)
        self.free_plain, self.free_packed = count(1), count(1)  # slot 0 pads: it stays poisoned
        self.known: dict[str, tuple[int, torch.Tensor, torch.Tensor]] = {}

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def page(self, packed: bool, used: int = PAGE) -> tuple[int, torch.Tensor, torch.Tensor]:
        """A new page of `used` tokens: its address, and its keys and values [G, used, D] as they are read."""
        read = []
        slot = next(self.free_packed if packed else self.free_plain)
        for n, codec in enumerate(self.codecs):
            x = self.random(self.g, PAGE, self.d).to(self.dtype)
            if packed:
                self.packed[n][slot] = codec.encode(x)
                x = codec.decode(self.packed[n][slot])
            else:
                self.plain[n][slot, :, :used] = x[:, :used]
            read.append(x[:, :used].double())
        return (slot if packed else ~slot), read[0], read[1]

    def sequence(self, row: Row) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """Addresses of all its pages; keys and values [G, computed + n, D] in float64."""
        pages = []
        total = row.computed + row.n
        for p in range(-(-total // PAGE)):
            name = row.shared[: p + 1]
            if p < len(row.shared):
                assert (p + 1) * PAGE <= row.computed, "only complete pages are shared"
                if name not in self.known:
                    self.known[name] = self.page(row.shared[p].isupper())
                pages.append(self.known[name])
            else:
                pages.append(self.page(False, min(PAGE, total - p * PAGE)))
        addresses, keys, values = zip(*pages, strict=True)
        return list(addresses), torch.cat(keys, 1), torch.cat(values, 1)

    @property
    def layer(self) -> LayerPages:
        return LayerPages(*self.plain, *self.packed, *self.codecs)


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, computed: int, window: int | None,
    scale: float, softcap: float | None, sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """q [n, H, D] at positions from `computed` on, k and v [G, N, D] → [n, H, D], row by row."""
    n, h, _ = q.shape
    out = torch.empty_like(q, dtype=torch.float64)
    for i in range(n):
        position = computed + i
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(h):
            side = head // (h // k.shape[0])
            scores = k[side, first : position + 1] @ q[i, head].double() * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat([scores, sinks[head : head + 1].double()])
            weights = scores.softmax(0)[: position + 1 - first]
            out[i, head] = weights @ v[side, first : position + 1]
    return out


def play(
    rows: Sequence[Row], *, g: int = 2, r: int = 2, d: int = 64, formats: tuple[str, str] = ("q8_0", "q4_0"),
    window: int | None = None, softcap: float | None = None, sinks: bool = False,
    dtype: torch.dtype = torch.float32, centred: bool = False, spoil: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(ours, dense) for one step of these sequences; `spoil` makes a gain of every packed page 1 % larger."""
    k_codec = PageCodec(get_format(formats[0]), d, "k", centred=centred, dtype=dtype)
    v_codec = PageCodec(get_format(formats[1]), d, "v", dtype=dtype)
    world = World(g, d, (k_codec, v_codec), dtype)
    segments, expected, queries, start = [], [], [], 0
    sink = world.random(g * r) if sinks else None
    scale = 2.5 * d**-0.5  # peaked enough for a wrong key to matter
    for row in rows:
        addresses, k, v = world.sequence(row)
        first = 0 if window is None else max(0, row.computed - window + 1) // PAGE
        segments.append(Segment(start, row.n, row.computed, first, np.array(addresses[first:], np.int64)))
        q = world.random(row.n, g * r, d)
        expected.append(dense(q, k, v, row.computed, window, scale, softcap, sink))
        queries.append(q)
        start += row.n
    if spoil:
        begin, end = v_codec.sections()["gains"]
        gains = world.packed[1][1:, :, begin:end].contiguous().view(torch.float16)
        world.packed[1][1:, :, begin:end] = (gains.float() * 1.01).half().view(torch.uint8)
    plan = make_plan(segments, window, torch.device("cpu"))
    ours = attend(torch.cat(queries), world.layer, plan, scale, softcap, sink)
    return ours, torch.cat(expected)


def check(rows: Sequence[Row], **settings: object) -> None:
    ours, expected = play(rows, **settings)  # type: ignore[arg-type]
    assert ours.shape == expected.shape
    assert float((ours.double() - expected).abs().max()) <= TIGHT


STEPS: dict[str, list[Row]] = {
    "the first token": [Row(0, 1)],
    "a page at once": [Row(0, 64)],
    "a page and one": [Row(0, 65)],
    "one before a boundary": [Row(63, 1)],
    "one at a boundary": [Row(64, 1)],
    "over a boundary": [Row(63, 2), Row(127, 3)],
    "alone, packed": [Row(320, 1, "aBCDE")],
    "alone, plain": [Row(450, 1)],
    "alone, a hole of plain among packed": [Row(400, 1, "ABcDEf")],
    "a chunk in mid-page": [Row(37, 90)],
    "a chunk behind packed pages": [Row(200, 70, "aBC")],
    "decodes of unequal length": [Row(5, 1), Row(64, 1), Row(200, 1, "aB"), Row(330, 1, "aBCDE")],
    "agents of one document": [Row(256 + n, 1, "aBCD") for n in (0, 5, 63)],
    "agents of a plain document": [Row(256 + n, 1, "abcd") for n in (0, 5, 63)],
    "a tree": [Row(330, 1, "aBCDE"), Row(330, 1, "aBCXY"), Row(200, 1, "aBC"), Row(260, 1, "aQ"), Row(70, 1)],
    "decodes, chunks and strangers": [
        Row(200, 1, "aBC"), Row(195, 70, "aBC"), Row(0, 10), Row(207, 1, "aBC"), Row(140, 3, "Zz"),
    ],
    "chunks first": [Row(0, 33), Row(128, 40, "aB"), Row(130, 1, "aB")],
    "two documents": [Row(140, 1, "aB"), Row(140, 1, "cD"), Row(150, 1, "aB"), Row(150, 1, "cD")],
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("window", [None, 1, 5, 64, 65, 100, 10_000])
def test_steps_and_windows(step: str, window: int | None) -> None:
    check(STEPS[step], window=window)


@pytest.mark.parametrize("step", ["a tree", "decodes, chunks and strangers", "chunks first"])
@pytest.mark.parametrize(
    ("formats", "centred", "dtype"),
    [
        (("plain", "plain"), False, torch.float32),
        (("plain", "plain"), False, torch.bfloat16),
        (("f16", "bf16"), False, torch.float16),
        (("q8_0", "q8_0"), True, torch.float32),
        (("q4_0", "plain"), True, torch.bfloat16),
    ],
)
def test_formats(step: str, formats: tuple[str, str], centred: bool, dtype: torch.dtype) -> None:
    check(STEPS[step], formats=formats, centred=centred, dtype=dtype, window=90)
    check(STEPS[step], formats=formats, centred=centred, dtype=dtype)


@pytest.mark.parametrize("step", ["alone, packed", "a tree", "decodes, chunks and strangers"])
@pytest.mark.parametrize(
    ("g", "r", "d"), [(1, 1, 16), (3, 1, 80), (1, 8, 128), (2, 5, 48), (4, 2, 32), (1, 3, 256)]
)
def test_heads(step: str, g: int, r: int, d: int) -> None:
    formats = ("q8_0", "q4_0") if d % 32 == 0 else ("f16", "plain")
    check(STEPS[step], g=g, r=r, d=d, formats=formats)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("softcap", "sinks", "window"), [(2.0, False, None), (None, True, 70), (5.0, True, None)]
)
def test_caps_and_sinks(step: str, softcap: float | None, sinks: bool, window: int | None) -> None:
    check(STEPS[step], softcap=softcap, sinks=sinks, window=window)


@pytest.mark.parametrize("scores", [1, 3000, 10**9])
@pytest.mark.parametrize("window", [None, 100])
def test_tiles_smaller_than_the_run(scores: int, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TILE_SCORES", scores)
    for step in (
        "alone, packed",
        "alone, a hole of plain among packed",
        "a tree",
        "decodes, chunks and strangers",
    ):
        check(STEPS[step], window=window, softcap=3.0, sinks=True)


def test_one_percent_of_a_gain_is_seen() -> None:
    ours, expected = play(STEPS["a tree"])
    spoilt, same = play(STEPS["a tree"], spoil=True)
    assert torch.equal(expected, same)
    assert float((ours.double() - expected).abs().max()) <= TIGHT
    assert float((spoilt.double() - expected).abs().max()) > 10 * TIGHT


def test_large_scores_stay_finite() -> None:
    """The running maximum keeps every exponent at or below zero."""
    world = World(
        1, 64, (PageCodec(get_format("q8_0"), 64, "k"), PageCodec(get_format("q8_0"), 64, "v")), torch.float32
    )
    addresses, k, v = world.sequence(Row(200, 1, "aBC"))
    q = 1000 * world.random(1, 2, 64)
    plan = make_plan([Segment(0, 1, 200, 0, np.array(addresses, np.int64))], None, torch.device("cpu"))
    ours = attend(q, world.layer, plan, 1.0)
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours.double(), dense(q, k, v, 200, None, 1.0, None, None), atol=1e-3, rtol=0)


# the plan


def test_a_shared_run_is_read_once() -> None:
    """Every sequence's pages are covered exactly once, and a page all share is in one run."""
    tables = [np.array(t, np.int64) for t in ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 7], [8], [])]
    runs = shared_runs(tables)
    for m, table in enumerate(tables):
        spans = sorted((run.begin, run.end) for run in runs if m in run.members)
        covered = [p for begin, end in spans for p in range(begin, end)]
        assert covered == list(range(len(table)))
    assert [sorted(run.members) for run in runs if run.begin == 0 and 0 in run.members] == [[0, 1, 2]]
    assert sum(run.end - run.begin for run in runs) == len({1, 2, 3, 4, 5, 6, 7, 8})


def test_agents_add_no_pages_to_the_plan() -> None:
    """What a step reads of a document does not grow with the number of agents on it."""
    document = list(range(10, 40))
    for agents in (2, 8, 32):
        segments = [
            Segment(n, 1, 30 * PAGE + 3, 0, np.array([*document, ~(100 + n)], np.int64))
            for n in range(agents)
        ]
        plan = make_plan(segments, None, torch.device("cpu"))
        assert [len(item.packed) for item in plan.items] == [30]
        assert len(plan.items[0].rows) == agents
