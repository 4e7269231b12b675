"""Attention in bands against Dual Chunk Attention pair by pair, in float64 from absolute positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from octavo.formats.base import PAGE
from octavo.formats.codec import PageCodec
from octavo.formats.registry import get_format
from octavo.pages.plan import Segment, make_plan
from octavo.pages.store import LayerPages
from octavo.reference.attention import attend

TIGHT = 5e-6
"""Scores reach 15 here, where float32 numbers lie 1e-6 apart, and weights are their exponentials."""


@dataclass(frozen=True)
class Seq:
    """One sequence of a step: tokens stored, new tokens, how many complete pages of `doc` it begins with."""

    computed: int
    n: int
    doc: str = ""
    shared: int = 0


def rotate(x: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
    """x [N, heads, D] turned by RoPE at `positions` [N], float64."""
    half = x.shape[-1] // 2
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * 10_000 ** -(torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def query_position(i: int, j: int, c: int) -> int:
    """Where the query at position i is turned to before it meets the key at j."""
    if i // c == j // c:
        return i % c
    return i % c + c if i // c == j // c + 1 else 2 * c


@dataclass
class World:
    """One layer's pages; slots that nobody owns hold NaN. Odd pages of documents are packed."""

    c: int
    g: int
    d: int
    seed: int = 0
    pages: dict[Any, tuple[int, torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.codecs = [PageCodec(get_format("q8_0"), self.d, side) for side in ("k", "v")]  # type: ignore[arg-type]
        self.plain = [torch.full((130, self.g, PAGE, self.d), torch.nan) for _ in range(2)]
        self.packed = [torch.full((40, self.g, x.nbytes), 255, dtype=torch.uint8) for x in self.codecs]
        self.free = count(1), count(1)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def page(self, name: Any, index: int, used: int, packed: bool) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Address, and keys and values [used, G, D] as they are read: keys turned to their place there."""
        if name in self.pages:
            return self.pages[name]
        k, v = self.random(used, self.g, self.d), self.random(used, self.g, self.d)
        k = rotate(k, [(index * PAGE + n) % self.c for n in range(used)])
        slot, read = next(self.free[packed]), [k, v]
        for n, x in enumerate((k, v)):
            own = x.transpose(0, 1).float().contiguous()
            if packed:
                self.packed[n][slot] = self.codecs[n].encode(own)
                read[n] = self.codecs[n].decode(self.packed[n][slot]).transpose(0, 1).double()
            else:
                self.plain[n][slot, :, :used] = own
        self.pages[name] = slot if packed else ~slot, read[0], read[1]
        return self.pages[name]

    def sequence(self, number: int, seq: Seq) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """Page addresses, and keys and values [computed + n, G, D]."""
        total, found = seq.computed + seq.n, []
        assert seq.shared * PAGE <= seq.computed
        for p in range(-(-total // PAGE)):
            name = (seq.doc, p) if p < seq.shared else (number, p)
            packed = p < seq.shared and p % 2 == 1
            found.append(self.page(name, p, min(PAGE, total - p * PAGE), packed))
        addresses, keys, values = zip(*found, strict=True)
        return list(addresses), torch.cat(keys), torch.cat(values)


def pair_by_pair(q: torch.Tensor, i: int, k: torch.Tensor, v: torch.Tensor, c: int, scale: float,
                 softcap: float | None, sinks: torch.Tensor | None) -> torch.Tensor:  # fmt: skip
    """q [H, D], unturned, of the query at i; k (turned) and v [i + 1, G, D] → [H, D]."""
    r = len(q) // k.shape[1]
    turned = rotate(q.expand(i + 1, -1, -1), [query_position(i, j, c) for j in range(i + 1)])
    scores = (turned * k.repeat_interleave(r, 1)).sum(-1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if sinks is not None:
        scores = torch.cat((scores, sinks[None]))
    return torch.einsum("nh,nhd->hd", scores.softmax(0)[: i + 1], v.repeat_interleave(r, 1))


def play(seqs: Sequence[Seq], c: int, *, g: int = 1, r: int = 2, d: int = 64, softcap: float | None = None,
         sinks: bool = False, far: int = 2, seed: int = 0) -> float:  # fmt: skip
    """The greatest difference of one step's attention from the reference. Far queries are turned to far · c.

    Queries of bands that a row does not reach are NaN.
    """
    world, scale = World(c, g, d, seed), 2.5 * d**-0.5  # peaked enough for a wrong key to matter
    sink = world.random(g * r) if sinks else None
    segments, queries, expected, start = [], [], {}, 0
    for number, seq in enumerate(seqs):
        addresses, k, v = world.sequence(number, seq)
        segments.append(Segment(start, seq.n, seq.computed, 0, np.array(addresses, np.int64)))
        q, positions = world.random(seq.n, g * r, d), range(seq.computed, seq.computed + seq.n)
        sets = [rotate(q, [p % c + b * c if b < 2 else far * c for p in positions]) for b in range(3)]
        for n, i in enumerate(positions):
            for band in range(i // c + 1, 3):
                sets[band][n] = torch.nan
            if seq.n <= 20 or i % 11 == 0 or (i + 2) % c < 4:
                expected[start + n] = pair_by_pair(q[n], i, k[: i + 1], v[: i + 1], c, scale, softcap, sink)
        queries.append(torch.stack(sets))
        start += seq.n
    plan = make_plan(segments, None, torch.device("cpu"), chunk=c)
    k_packed, v_packed = world.packed
    layer = LayerPages(*world.plain, k_packed, v_packed, *world.codecs)
    ours = attend(torch.cat(queries, 1).flatten(0, 1).float(), layer, plan, scale, softcap, sink)
    right = torch.stack(list(expected.values()))
    return float((ours[list(expected)].double() - right).abs().max())


CHUNKS = (64, 128, 192)


@pytest.mark.parametrize("c", CHUNKS)
@pytest.mark.parametrize("n", [17, 64, 100, 512])
def test_segments_that_straddle_edges(c: int, n: int) -> None:
    for computed in (c - 9, 2 * c - 1, 3 * c - n // 2, 5 * c - n + 1, 6 * c - n):
        assert play([Seq(max(0, computed), n)], c) <= TIGHT, computed


@pytest.mark.parametrize("c", CHUNKS)
def test_prompts_at_once(c: int) -> None:
    for length in (2 * c - 1, 2 * c, 2 * c + 1, 3 * c - 1, 3 * c + 1, 4 * c):
        assert play([Seq(0, length)], c) <= TIGHT, length


@pytest.mark.parametrize("c", CHUNKS)
@pytest.mark.parametrize("delta", [-2, -1, 0, 1])
def test_single_tokens_around_every_edge(c: int, delta: int) -> None:
    """Alone and in one batch, private and from a document that all share."""
    seqs = [Seq(edge * c + delta, 1) for edge in range(1, 7)]
    assert play([seqs[2]], c) <= TIGHT
    assert play([*seqs, Seq(0, 1)], c) <= TIGHT
    assert play([Seq(s.computed, 1, "d", s.computed // PAGE) for s in seqs], c) <= TIGHT


MIXED = {
    "short and long": [Seq(0, 5), Seq(700, 1), Seq(20, 1), Seq(63, 2), Seq(390, 70)],
    "one document, agents in different chunks": [
        *(Seq(at, 1, "d", 4) for at in (256, 320, 450, 1000)), Seq(270, 90, "d", 4),
    ],
    "prefixes of one text": [Seq(64 * p + 5, 3, "d", p) for p in (1, 2, 3, 5, 9, 13)],
    "two documents": [Seq(400, 1, "d", 6), Seq(500, 60, "e", 6), Seq(401, 1, "d", 6), Seq(600, 1, "e", 3)],
    "a document that ends at an edge": [
        Seq(384, 1, "d", 6), Seq(384, 200, "d", 6), Seq(383, 2), Seq(768, 1, "d", 6),
    ],
    "drafts over an edge": [Seq(382, 4, "d", 5), Seq(575, 5, "d", 5), Seq(191, 3), Seq(126, 4)],
}  # fmt: skip


@pytest.mark.parametrize("c", CHUNKS)
@pytest.mark.parametrize("name", MIXED)
def test_batches(name: str, c: int) -> None:
    assert play(MIXED[name], c) <= TIGHT


@pytest.mark.parametrize("name", ["short and long", "one document, agents in different chunks"])
@pytest.mark.parametrize(
    ("g", "r", "d", "softcap", "sinks"),
    [(2, 4, 32, None, False), (3, 1, 64, None, True), (1, 5, 96, 4.0, False), (2, 2, 64, 4.0, True)],
)
def test_heads_caps_and_sinks(name: str, g: int, r: int, d: int, softcap: float | None, sinks: bool) -> None:
    assert play(MIXED[name], 128, g=g, r=r, d=d, softcap=softcap, sinks=sinks) <= TIGHT


@pytest.mark.parametrize("seed", range(12))
def test_random_steps(seed: int) -> None:
    draw = np.random.default_rng(seed)
    c, seqs = CHUNKS[seed % 3], []
    for _ in range(draw.integers(2, 6)):
        computed = int(draw.integers(0, 800))
        doc, shared = "de"[draw.integers(2)], int(draw.integers(0, computed // PAGE + 1))
        seqs.append(Seq(computed, int(draw.choice([1, 1, 2, 40, 130])), doc, shared))
    assert play(seqs, c, seed=seed) <= TIGHT


def test_far_keys_at_another_distance_are_noticed() -> None:
    seqs = [Seq(2 * 64 + 3, 1)]
    assert play(seqs, 64) <= TIGHT
    assert play(seqs, 64, far=1) > 1000 * TIGHT


def test_the_reference_is_plain_rope_within_two_chunks() -> None:
    """Its own check: true distances, whatever the chunk length."""
    world = World(64, 1, 32)
    q, k = world.random(1, 1, 32), world.random(128, 1, 32)
    true = (rotate(q, [127]) * rotate(k, list(range(128)))).sum(-1)
    turned = rotate(q.expand(128, -1, -1), [query_position(127, j, 64) for j in range(128)])
    chunked = (turned * rotate(k, [j % 64 for j in range(128)])).sum(-1)
    assert float((true - chunked).abs().max()) < 1e-12
