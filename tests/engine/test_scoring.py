"""Teacher forcing of many texts at once says of each what it says alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from octavo import Engine, Recipe
from octavo.engine.scoring_batch import ScoringBatch
from octavo.errors import InvalidRequest, PoolFull, PromptTooLong
from tests.engine.helpers import audit_engine, greedy, live, random_tokens, rows_of_passes, tiny_engine

Texts = Sequence[tuple[list[int], int]]

LENGTHS = (1, 63, 64, 65, 200, 129, 10, 330, 70, 128, 5)
ALL = [(random_tokens(n, n), 0) for n in LENGTHS]
ENDS = [(tokens, max(0, len(tokens) - 9)) for tokens, _ in ALL]


def alone(engine: Engine, tokens: list[int], wanted: int) -> torch.Tensor:
    """By the other way: a row on private pages, whatever is wanted."""
    return torch.cat([hidden[0] for _, hidden in engine.score_rows([tokens])])[wanted:]


def together(engine: Engine, texts: Texts, **settings: Any) -> list[torch.Tensor]:
    """Rows from each text's wanted one on; they come in order and once."""
    parts: list[list[torch.Tensor]] = [[] for _ in texts]
    rows = [-1] * len(texts)
    for n, start, hidden in engine.score_many(texts, **settings):
        assert rows[n] in (-1, start)
        rows[n] = start + len(hidden)
        parts[n].append(hidden[max(0, texts[n][1] - start) :])
    assert rows == [len(tokens) for tokens, _ in texts]
    return [torch.cat(part) for part in parts]


def check(engine: Engine, texts: Texts, found: list[torch.Tensor], most: float = 1e-4) -> None:
    for (tokens, wanted), rows in zip(texts, found, strict=True):
        want = alone(engine, tokens, wanted)
        assert rows.shape == want.shape
        assert float((rows - want).abs().max()) <= most * float(want.abs().max())
    assert live(engine) == 0
    audit_engine(engine)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "gemma2"])
@pytest.mark.parametrize("texts", [ALL, ENDS], ids=["all rows", "last rows"])
def test_it_is_as_alone(family: str, texts: Texts) -> None:
    engine = tiny_engine(family)
    check(engine, texts, together(engine, texts))


@pytest.mark.parametrize("recipe", [Recipe("q8_0", "q8_0"), Recipe("turbo3_tcq", "q4_0", recent=0)])
def test_on_packed_pages_too(recipe: Recipe) -> None:
    engine = tiny_engine("llama", recipe)
    check(engine, ALL, together(engine, ALL), 1e-3)


def test_under_dual_chunk_attention() -> None:
    engine = tiny_engine("llama", Recipe("plain", "plain", dca="on", dca_chunk=128))
    check(engine, ALL, together(engine, ALL))


def test_a_chunk_is_a_chunk_whoever_runs_beside_it() -> None:
    """A step of 100 tokens holds one chunk of 64: none is cut to fill it."""
    engine = tiny_engine(chunk=100)
    sizes: list[int] = []
    for _, start, hidden in engine.score_many(ALL):
        sizes.append(len(hidden))
        assert len(hidden) == 64 or start + len(hidden) in LENGTHS
    check(engine, ALL, together(engine, ALL, chunk=64))


def test_beginnings_are_computed_once_and_texts_run_side_by_side() -> None:
    engine = tiny_engine()
    context = random_tokens(200)
    texts = [([*context, *random_tokens(9, n)], 199) for n in range(6)]
    other = [(random_tokens(150, 50 + n), 140) for n in range(2)]
    rows = rows_of_passes(engine)
    found = together(engine, [*texts, *other])
    assert sum(rows) == 209 + 5 * (209 - 192) + 2 * 150
    assert len(rows) <= 5, "the others run while the first computes what all share, then all at once"
    check(engine, [*texts, *other], found)


def test_texts_that_do_not_fit_together_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The youngest starts again, and what it told is not told twice."""
    engine, back = tiny_engine(memory="1MB", chunk=2048), []
    put_back = ScoringBatch._put_back
    monkeypatch.setattr(
        ScoringBatch, "_put_back", lambda own, text: (back.append(text.told), put_back(own, text))
    )
    texts = [(random_tokens(250, n), 0 if n % 2 else 240) for n in range(8)]
    assert engine._core.memory.capacity < 8 * 250
    check(engine, texts, together(engine, texts))
    assert max(back) > 0


def test_what_can_never_fit_is_told_and_nothing_is_kept() -> None:
    engine = tiny_engine(memory="1MB")
    with engine.document(random_tokens(300)):
        before = live(engine)
        with pytest.raises((PoolFull, PromptTooLong)):
            list(engine.score_many([(random_tokens(300, 1), 0)]))
        assert live(engine) == before
    with pytest.raises(InvalidRequest, match="no tokens to score"):
        engine.score_many([([], 0)])
    with pytest.raises(InvalidRequest, match="wanted is 5; the rows of 3 tokens are 0 to 2"):
        engine.score_many([([1, 2, 3], 5)])
    assert list(engine.score_many([])) == []


def test_half_way_everything_is_given_back() -> None:
    engine = tiny_engine()
    scored = engine.score_many(ALL)
    next(scored)
    assert live(engine) > 0
    scored.close()
    assert live(engine) == 0
    audit_engine(engine)


def test_beside_a_document_and_its_requests() -> None:
    engine, text = tiny_engine(), random_tokens(150)
    with engine.document(text) as held:
        check_answer = engine.generate([[3]], greedy(5), document=held)[0].tokens
        found = together(engine, [([*text, 7, 8], 149), *ENDS])
        assert engine.generate([[3]], greedy(5), document=held)[0].tokens == check_answer
    check(engine, [([*text, 7, 8], 149), *ENDS], found)
