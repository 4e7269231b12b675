"""Context shift: a full sequence forgets its oldest tokens behind a pinned head; pages that stay are as they
were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo import Engine, Recipe, Sampling
from octavo.engine.sequence import Sequence
from octavo.errors import InvalidRequest
from octavo.pages.ledger import GONE, Move
from tests.engine.helpers import audit_engine, live, random_tokens, recorded
from tests.tiny import tiny_loaded

CHUNK, CONTEXT, KEEP = 128, 640, 70
HEAD = 128
"""KEEP tokens in whole pages."""
PROMPT = 500


def dual(family: str = "llama", pair: str = "plain", **settings: Any) -> Engine:
    layers = settings.pop("layers", {})
    loaded = tiny_loaded(family, max_position_embeddings=2 * CHUNK, **layers)
    recipe = Recipe.from_pair(pair, dca="on", dca_chunk=CHUNK)
    return Engine(loaded, recipe, **{"memory": "64MB", "context": CONTEXT, **settings})


def shifting(max_tokens: int, **rules: Any) -> Sampling:
    own = {"max_tokens": max_tokens, "ignore_eos": True, "context_shift": True, "keep": KEEP}
    return Sampling(**{**own, **rules})


def kept(history: list[int], limit: int) -> list[int]:
    """The tokens a sequence of at most `limit` keeps of its history, by the rule of docs/walk.md."""
    tokens: list[int] = []
    for token in history:
        if len(tokens) == limit:
            tokens = tokens[:HEAD] + tokens[HEAD + (limit - HEAD) // CHUNK // 2 * CHUNK :]
        tokens.append(token)
    return tokens


ONE_LAYER = {"num_hidden_layers": 1}


@pytest.mark.parametrize("pair", ["plain", "q8_0:q4_0"])
def test_after_shifts_logits_are_those_of_the_kept_tokens(pair: str) -> None:
    """In a model of one layer keys and values know nothing of what was dropped: a fresh prefill agrees."""
    engine = dual(pair=pair, layers=ONE_LAYER)
    prompt = random_tokens(PROMPT)
    with recorded(engine) as rows:
        answer = engine.generate([prompt], shifting(700), raw=True)[0]
    (behind,) = rows.values()
    assert answer.usage.context_shifted == 768 and engine.stats().context_shifts == 3
    for made in (141, 142, 300, 500, 699):
        tokens = kept([*prompt, *answer.tokens[:made]], CONTEXT)
        exact, packed = fresh_logits(tokens, "plain"), fresh_logits(tokens, pair)
        own = float((packed - exact).norm())  # the format's own error: 0 for plain pages
        assert float((behind[made] - exact).norm()) < 2 * own + 1e-4 * float(exact.norm()), made


def fresh_logits(tokens: list[int], pair: str) -> torch.Tensor:
    """The logits behind the last of `tokens`, all packed that ever are when they are read."""
    engine = dual(pair=pair, layers=ONE_LAYER, chunk=64)
    with recorded(engine) as rows:
        engine.generate([tokens], Sampling(max_tokens=1), raw=True)
    ((logits,),) = rows.values()
    return logits


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "smollm3"])
def test_no_page_is_encoded_again_and_none_is_lost(family: str) -> None:
    layers = {} if family != "gpt_oss" else {"max_position_embeddings": 4096}
    loaded = tiny_loaded(family, **({"max_position_embeddings": 2 * CHUNK} | layers))
    recipe = Recipe.from_pair("q8_0", dca="on", dca_chunk=CHUNK)
    engine = Engine(loaded, recipe, memory="64MB", context=CONTEXT)
    sealed: list[tuple[int, int]] = []
    seal = engine._core.memory.seal

    def note(moves: list[Move]) -> None:
        sealed.extend((m.group, m.target) for m in moves)
        seal(moves)

    engine._core.memory.seal = note  # type: ignore[method-assign]
    id = engine.submit(random_tokens(PROMPT), shifting(400), raw=True)
    core, before = engine._core, -1
    while not engine.idle:
        engine.step()
        running = core.scheduler.running
        if running and core.clock.shifts != before:
            before = core.clock.shifts
            check_tables(engine, running[0])
    assert id and before >= 2 and core.clock.dropped % CHUNK == 0
    computed = PROMPT + 400 - 1
    full = next(n for n, g in enumerate(core.memory.ledger.groups) if g.window is None)
    assert sum(group == full for group, _ in sealed) <= computed // 64 - 1  # each page once, the first never
    assert live(engine) == 0
    audit_engine(engine)


def check_tables(engine: Engine, sequence: Sequence) -> None:
    """Every page that the next token reads is held, in each group."""
    for group, table in zip(engine._core.memory.ledger.groups, sequence.holding.tables, strict=True):
        pages = -(-sequence.computed // 64)
        assert len(table) == pages
        assert GONE not in table[group.first_needed(sequence.computed) : pages]


def test_a_prompt_longer_than_the_context_shifts_while_it_is_read() -> None:
    engine = dual(layers=ONE_LAYER)
    prompt = random_tokens(1500)
    with recorded(engine) as rows:
        answer = engine.generate([prompt], shifting(3), raw=True)[0]
    assert answer.usage.prompt_tokens == 1500 and len(answer.tokens) == 3
    fresh = dual(layers=ONE_LAYER)
    with recorded(fresh) as row:
        fresh.generate([kept(prompt, CONTEXT)], Sampling(max_tokens=1), raw=True)
    ours, expected = next(iter(rows.values()))[0], next(iter(row.values()))[0]
    torch.testing.assert_close(ours, expected, atol=2e-3, rtol=1e-3)


def test_shifted_pages_are_nobody_elses() -> None:
    """What was computed in sight of dropped tokens is not found by others with the same tokens."""
    engine = dual()
    prompt = random_tokens(PROMPT)
    first = engine.generate([prompt], shifting(500), raw=True)[0]
    history = [*prompt, *first.tokens]
    cached = [
        engine.generate([tokens], Sampling(max_tokens=1), raw=True)[0].usage.cached_tokens
        for tokens in (kept(history, CONTEXT)[:600], history[:630])
    ]
    assert cached[0] <= HEAD and cached[1] <= CONTEXT


def test_a_preempted_sequence_goes_on_from_its_kept_tokens() -> None:
    engine = dual(memory="2MB", max_sequences=4)
    prompts = [random_tokens(PROMPT, n) for n in range(4)]
    answers = engine.generate(prompts, shifting(300), raw=True)
    assert engine.stats().requests["preempted"] > 0 and all(len(a.tokens) == 300 for a in answers)
    assert live(engine) == 0
    audit_engine(engine)


def test_a_context_as_large_as_the_pool() -> None:
    """At the limit pages wait for packed slots, which only the shift frees: they are packed then."""
    engine = dual(pair="q8_0", memory="2MB", context=None)
    assert engine.context == engine._core.memory.capacity
    length = engine.context + 300
    answer = engine.generate([random_tokens(length - 200)], shifting(400), raw=True)[0]
    assert len(answer.tokens) == 400 and answer.usage.context_shifted
    audit_engine(engine)


def test_a_pool_that_a_document_fills_is_shifted_too() -> None:
    engine = dual(memory="2MB", context=None)
    with engine.document(random_tokens(400, 3), raw=True):
        answer = engine.generate([random_tokens(engine.context - 200)], shifting(300), raw=True)[0]
        assert len(answer.tokens) == 300 and answer.usage.context_shifted
    audit_engine(engine)


def test_keep_alone_is_told() -> None:
    with pytest.raises(InvalidRequest, match="keep is 70, but without context_shift"):
        Sampling(keep=70)


def test_a_document_stays() -> None:
    engine = dual()
    with engine.document(random_tokens(200), raw=True) as book:
        answer = engine.generate([random_tokens(100, 1)], shifting(500, keep=0), document=book, raw=True)[0]
        assert answer.usage.context_shifted and book.ready
        again = engine.generate([random_tokens(30, 2)], Sampling(max_tokens=2), document=book, raw=True)[0]
        assert again.usage.cached_tokens >= 200
    audit_engine(engine)


@pytest.mark.parametrize(
    ("settings", "rules", "told"),
    [
        ({"dca": "off"}, {}, "dca on"),
        ({}, {"keep": 500}, "836|pinned"),
        ({}, {"max_tokens": None}, "max_tokens"),
        ({}, {"keep": -1}, "keep"),
    ],
)
def test_what_cannot_shift_is_refused(settings: dict[str, str], rules: dict[str, Any], told: str) -> None:
    recipe = Recipe.from_pair("plain", **{"dca": "on", "dca_chunk": CHUNK, **settings})
    loaded = tiny_loaded("llama", max_position_embeddings=1024)
    engine = Engine(loaded, recipe, memory="16MB", context=CONTEXT)
    with pytest.raises(InvalidRequest, match=told):
        engine.generate([random_tokens(50)], shifting(**{"max_tokens": 10, **rules}), raw=True)


@pytest.mark.parametrize(("keep", "field"), [(10_000, "keep"), (CONTEXT - CHUNK, "context_shift")])
def test_the_field_that_asks_for_too_much_is_named(keep: int, field: str) -> None:
    recipe = Recipe.from_pair("plain", dca="on", dca_chunk=CHUNK)
    loaded = tiny_loaded("llama", max_position_embeddings=1024)
    engine = Engine(loaded, recipe, memory="16MB", context=CONTEXT)
    with pytest.raises(InvalidRequest, match="needs sequences of") as refused:
        engine.generate([random_tokens(50)], shifting(max_tokens=10, keep=keep), raw=True)
    assert refused.value.field == field
