"""One request from the caller's side: what is refused, what comes back, and how it ends."""

from __future__ import annotations

import gc
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from octavo import Completion, Engine, OctavoError, Recipe, Sampling
from octavo.engine.requests import Delta
from octavo.engine.sampler import Picked
from octavo.engine.sequence import Sequence
from octavo.errors import (
    DocumentInUse,
    EngineStopped,
    InvalidRequest,
    Overloaded,
    PoolFull,
    PromptTooLong,
    UnknownDocument,
    UnknownName,
)
from tests.engine.helpers import (
    PLAIN,
    audit_engine,
    greedy,
    live,
    random_tokens,
    tiny_engine,
    transformers_logits,
)
from tests.tiny import tiny_loaded

EOS = 257


@pytest.fixture(scope="module")
def shared() -> Engine:
    """One engine for all bad input: it must survive all of it."""
    return tiny_engine(context=600, max_sequences=2)


@pytest.fixture(autouse=True)
def nothing_is_lost(request: pytest.FixtureRequest) -> Any:
    """After each bad input the shared engine still answers, and holds no page."""
    yield
    if "shared" in request.fixturenames:
        engine = request.getfixturevalue("shared")
        assert len(engine.generate("still there?", greedy(3))[0].tokens) == 3
        assert engine.idle and live(engine) == 0 and not engine.documents
        audit_engine(engine)


# refused at once


@pytest.mark.parametrize(
    "prompt",
    ["", [], None, 5, 1.5, b"bytes", [1, "a"], [1.5], ["a"], [None], [{"role": "user"}, 3],
     [{"text": "no role"}],
     [{"role": "nobody", "content": "x"}],
     [{"role": "user", "content": 3}], {"role": "user"}],
)  # fmt: skip
def test_bad_prompts(shared: Engine, prompt: Any) -> None:
    with pytest.raises(InvalidRequest):
        shared.submit(prompt)


@pytest.mark.parametrize("text", ["", [], None, 5, b"bytes", ["a"], [1.5], [264], [-1]])
def test_bad_documents(shared: Engine, text: Any) -> None:
    with pytest.raises(InvalidRequest):
        shared.document(text)


@pytest.mark.parametrize("token", [-1, 264, 10**9])
def test_tokens_outside_the_vocabulary(shared: Engine, token: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{token}.*263"):
        shared.submit([1, 2, token])
    with pytest.raises(InvalidRequest, match=f"{token}.*263"):
        shared.submit([1], Sampling(logit_bias={token: 1.0}))
    with pytest.raises(InvalidRequest, match=f"{token}.*263"):
        shared.submit([1], Sampling(stop_token_ids=(token,)))


@pytest.mark.parametrize(
    "rules",
    [
        {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 2.5}, {"max_tokens": "5"},
        {"temperature": -1}, {"temperature": float("nan")}, {"temperature": float("inf")},
        {"temperature": "hot"}, {"temperature": None},
        {"top_p": 0}, {"top_p": 1.1}, {"top_p": None}, {"top_k": -1}, {"top_k": 2.5},
        {"min_p": 2}, {"min_p": float("nan")}, {"seed": "abc"}, {"seed": 1.5},
        {"stop": ("",)}, {"stop": (3,)}, {"stop": ("a", None)}, {"stop_token_ids": ("a",)},
        {"stop_token_ids": 3},
        {"presence_penalty": 3}, {"frequency_penalty": float("nan")}, {"frequency_penalty": "1"},
        {"logprobs": 21}, {"logprobs": -1}, {"logprobs": 2.5},
        {"logit_bias": {1: float("nan")}}, {"logit_bias": {1: float("inf")}}, {"logit_bias": {1: "a"}},
        {"logit_bias": {"a": 1.0}}, {"logit_bias": {1.5: 1.0}}, {"logit_bias": [1]},
        {"ignore_eos": "no"},
    ],
    ids=str,
)  # fmt: skip
def test_bad_sampling_names_the_setting(rules: dict[str, Any]) -> None:
    """Here and not in a step, where it would end everybody's requests."""
    (name,) = rules
    with pytest.raises(InvalidRequest, match=name):
        Sampling(**rules)


def test_numbers_of_any_kind_are_taken() -> None:
    """NumPy's and others: a step computes with Python's own."""
    kinds: dict[str, Any] = {
        "max_tokens": np.int64(3), "temperature": Fraction(1, 2), "seed": np.int64(5), "top_k": np.uint8(40),
        "frequency_penalty": Fraction(1, 2), "logit_bias": {np.int32(3): Fraction(1, 3)},
        "stop_token_ids": (np.int8(7),),
    }  # fmt: skip
    rules = Sampling(**kinds)
    plain = Sampling(
        max_tokens=3, temperature=0.5, seed=5, top_k=40,
        frequency_penalty=0.5, logit_bias={3: 1 / 3}, stop_token_ids=(7,),
    )  # fmt: skip
    assert rules == plain and {type(v) for v in (rules.seed, rules.top_k, rules.max_tokens)} == {int}
    said = [tiny_engine().generate([[1, 2]], one)[0].tokens for one in (rules, plain)]
    assert said[0] == said[1]


def test_settings_that_are_no_sampling_are_refused(shared: Engine) -> None:
    with pytest.raises(InvalidRequest, match="sampling is a dict; it must be a Sampling"):
        shared.generate(["a"], {"max_tokens": 2})  # type: ignore[arg-type]


def test_too_long_for_the_context(shared: Engine) -> None:
    assert shared.generate([random_tokens(599)], greedy(9))[0].finish == "length"  # one token fits
    with pytest.raises(PromptTooLong, match=r"601 tokens.*600"):
        shared.submit(random_tokens(600))
    with pytest.raises(PromptTooLong, match=r"601 tokens.*600"):
        shared.document(random_tokens(601))


def test_too_long_for_the_pool() -> None:
    engine = tiny_engine(memory="1MB")
    with pytest.raises(PromptTooLong, match=r"513 tokens.*512.*--memory"):
        engine.submit(random_tokens(512))
    assert engine.generate([random_tokens(500)], greedy(99))[0].usage.completion_tokens == 12


def test_a_prompt_that_documents_leave_no_room_for_fails_by_name() -> None:
    engine = tiny_engine(memory="1MB")
    with engine.document(random_tokens(300)), pytest.raises(PoolFull, match=r"release a document"):
        engine.generate([random_tokens(300, 1)], greedy(5))
    assert len(engine.generate([random_tokens(300, 1)], greedy(5))[0].tokens) == 5
    audit_engine(engine)


def test_a_document_that_finds_no_room_fails_and_its_name_is_free() -> None:
    engine = tiny_engine(memory="1MB")
    with engine.document(random_tokens(300), name="a"):
        with pytest.raises(PoolFull):
            engine.document(random_tokens(300, 1), name="b")
        assert list(engine.documents) == ["a"]
    engine.document(random_tokens(300, 1), name="b").release()
    assert live(engine) == 0


def test_unknown_documents(shared: Engine) -> None:
    with pytest.raises(UnknownDocument, match="handbok"):
        shared.submit("x", document="handbok")
    with (
        shared.document("text", name="handbook"),
        pytest.raises(UnknownDocument, match="did you mean 'handbook'"),
    ):
        shared.submit("x", document="handbok")


def test_a_released_document_is_unknown(shared: Engine) -> None:
    document = shared.document("text", name="a")
    document.release()
    with pytest.raises(UnknownDocument):
        document.release()
    with shared.document("text", name="a"), pytest.raises(UnknownDocument):
        shared.submit("x", document=document)  # the same name, another document


def test_another_engines_document_is_unknown(shared: Engine) -> None:
    with tiny_engine().document("text", name="a") as foreign, pytest.raises(UnknownDocument):
        shared.submit("x", document=foreign)


def test_a_document_in_use_is_not_released(shared: Engine) -> None:
    document = shared.document("text")
    request = shared.submit("x", greedy(5), document=document)
    with pytest.raises(DocumentInUse, match="1 request"):
        document.release()
    shared.step()
    with pytest.raises(DocumentInUse):
        document.release()
    shared.abort(request)
    shared.unread()
    document.release()


def test_a_document_says_what_it_holds(shared: Engine) -> None:
    with shared.document(random_tokens(130)) as document:
        assert (document.tokens, document.pages, document.users, document.raw) == (130, 3, 0, True)
        assert document.bytes == 3 * shared._core.memory.stores[0].plain_bytes == shared.stats().bytes["live"]


@pytest.mark.parametrize("raw", [True, False])
def test_raw_and_chat_do_not_mix(shared: Engine, raw: bool) -> None:
    with shared.document("text", raw=raw) as document, pytest.raises(InvalidRequest, match=f"raw={raw}"):
        shared.submit("x", document=document, raw=not raw)


def test_messages_are_not_raw(shared: Engine) -> None:
    with pytest.raises(InvalidRequest, match="raw"):
        shared.submit([{"role": "user", "content": "x"}], raw=True)


def test_prompts_and_samplings_must_match(shared: Engine) -> None:
    with pytest.raises(InvalidRequest, match="2 prompts but 3"):
        shared.generate(["a", "b"], [greedy(1)] * 3)


def test_one_bad_prompt_of_a_batch_leaves_nothing_behind(shared: Engine) -> None:
    with pytest.raises(InvalidRequest):
        shared.generate(["fine", ""], greedy(5))


@pytest.mark.parametrize("settings", [{"chunk": 0}, {"max_sequences": 0}, {"max_waiting": -1}])
def test_bad_engine_settings(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(InvalidRequest, match=name):
        tiny_engine(**settings)


@pytest.mark.parametrize(
    ("context", "told"),
    [(0, "at least 1"), (1, "1.*4096"), (4097, "4097.*4096"), (1024.0, "whole numb"), ("9", "whole numb")],
)
def test_bad_contexts(context: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        tiny_engine(recipe=Recipe(dca="off"), context=context)


@pytest.mark.parametrize("memory", ["lots", "4 GB!", "", "-1GB"])
def test_bad_memory(memory: str) -> None:
    with pytest.raises(InvalidRequest, match="memory"):
        tiny_engine(memory=memory)


@pytest.mark.parametrize("memory", [0, -5, 1000, 1e5])
def test_a_pool_too_small_says_what_it_needs(memory: float) -> None:
    with pytest.raises(PoolFull, match=r"cannot hold one sequence.*--memory"):
        tiny_engine(memory=memory)


def test_unknown_formats_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'q8_0'"):
        Recipe("q9_0")
    with pytest.raises(UnknownName, match="did you mean 'recent'"):
        Recipe.from_dict({"recnt": 3})


@pytest.mark.parametrize("chunk", [0, -1])
def test_scoring_wants_whole_chunks(shared: Engine, chunk: int) -> None:
    with pytest.raises(InvalidRequest, match="chunk"):
        next(shared.score([1, 2, 3], chunk=chunk))


def test_scoring_left_early_gives_its_pages_back(shared: Engine) -> None:
    scores = shared.score(random_tokens(200))
    next(scores)
    assert live(shared)
    scores.close()  # type: ignore[attr-defined]


def test_more_requests_than_the_queue_takes() -> None:
    engine = tiny_engine(max_sequences=1, max_waiting=2)
    accepted = [engine.submit("a", greedy(2)) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests wait"):
        engine.submit("c")
    with pytest.raises(Overloaded):
        engine.document("d", name="d")
    assert "d" not in engine.documents
    deltas = [d for _ in range(9) for d in engine.step()]
    assert [d.request for d in deltas if d.finish == "length"] == accepted
    engine.document("d", name="d").release()


def test_generate_takes_more_prompts_than_the_queue() -> None:
    engine = tiny_engine(max_sequences=2, max_waiting=2)
    prompts = [random_tokens(10 + n, n) for n in range(9)]
    answers = engine.generate(prompts, [greedy(1 + n % 4) for n in range(9)])
    assert [len(a.tokens) for a in answers] == [1 + n % 4 for n in range(9)]
    alone = tiny_engine()
    assert [a.tokens for a in answers] == [
        alone.generate([p], greedy(1 + n % 4))[0].tokens for n, p in enumerate(prompts)
    ]


# text

Script = Callable[[str | bytes | list[int]], None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Make every request say this, a byte a token, whatever the model thinks."""

    def say(text: str | bytes | list[int]) -> None:
        tokens = list(text.encode() if isinstance(text, str) else text)

        def scripted(logits: torch.Tensor, sequences: list[Sequence]) -> Picked:
            said = torch.tensor([tokens[s.generated] for s in sequences])
            return Picked(said, torch.zeros(len(said)), {})

        monkeypatch.setattr("octavo.engine.core.pick", scripted)

    return say


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine()


def listen(engine: Engine, **rules: Any) -> list[Delta]:
    return list(engine.stream("x", Sampling(**rules)))


def said(deltas: list[Delta]) -> str:
    return "".join(d.text for d in deltas)


def test_stop_strings_cross_token_boundaries(engine: Engine, script: Script) -> None:
    script("hello STOP never said")
    deltas = listen(engine, stop=("STOP",))
    assert said(deltas) == "hello "
    assert deltas[-1].finish == "stop"
    assert deltas[-1].usage.completion_tokens == len("hello STOP")


def test_what_might_become_a_stop_string_is_held_and_then_said(engine: Engine, script: Script) -> None:
    script("a STO STOX STOP")
    texts = [d.text for d in listen(engine, stop=("STOP",))]
    assert "".join(texts) == "a STO STOX "
    assert texts[:6] == ["a", " ", "", "", "", "STO "]


def test_held_text_is_said_at_the_end(engine: Engine, script: Script) -> None:
    script("ab STO")
    deltas = listen(engine, stop=("STOP",), max_tokens=6)
    assert (said(deltas), deltas[-1].finish) == ("ab STO", "length")
    script([*b"ab STO", EOS])
    deltas = listen(engine, stop=("STOP",))
    assert (said(deltas), deltas[-1].finish) == ("ab STO", "stop")


def test_a_stop_string_at_the_last_token_is_a_stop(engine: Engine, script: Script) -> None:
    script("ab END")
    deltas = listen(engine, stop=("END",), max_tokens=6)
    assert (said(deltas), deltas[-1].finish) == ("ab ", "stop")


@pytest.mark.parametrize(
    ("stops", "expected"),
    [(("b", "abc"), "xa"), (("abc", "bcd"), "x"), (("bcd", "zzz"), "xa"), (("d",), "xabc"), ("abcd", "x")],
)
def test_the_first_stop_string_to_be_complete_wins(
    engine: Engine, script: Script, stops: tuple[str, ...], expected: str
) -> None:
    script("xabcdef")
    assert said(listen(engine, stop=stops, max_tokens=7)) == expected


def test_characters_come_whole(engine: Engine, script: Script) -> None:
    text = "é€😀 日本"
    script(text)
    deltas = listen(engine, max_tokens=len(text.encode()))
    assert [d.text for d in deltas if d.text] == list(text)


def test_half_a_character_at_the_end_is_replaced(engine: Engine, script: Script) -> None:
    script("a😀")
    deltas = listen(engine, max_tokens=3)
    assert said(deltas) == "a�"
    assert deltas[-1].finish == "length"


def test_a_stop_string_of_several_bytes_a_character(engine: Engine, script: Script) -> None:
    script("日本語")
    assert said(listen(engine, stop=("語",), max_tokens=9)) == "日本"


def test_the_end_token_is_counted_and_not_said(engine: Engine, script: Script) -> None:
    script([*b"ab", EOS])
    deltas = listen(engine)
    assert (said(deltas), deltas[-1].finish) == ("ab", "stop")
    assert [t for d in deltas for t in d.tokens] == [*b"ab", EOS]
    assert deltas[-1].usage.completion_tokens == 3


def test_the_end_token_can_be_ignored(engine: Engine, script: Script) -> None:
    script([*b"ab", EOS, *b"cd"])
    deltas = listen(engine, ignore_eos=True, max_tokens=5)
    assert (said(deltas), deltas[-1].finish) == ("abcd", "length")


def test_stop_tokens_end_and_are_not_said(engine: Engine, script: Script) -> None:
    script("abcd")
    deltas = listen(engine, stop_token_ids=(ord("c"),))
    assert (said(deltas), deltas[-1].finish) == ("ab", "stop")


@pytest.mark.parametrize("most", [1, 2, 63, 64, 65])
def test_max_tokens(engine: Engine, most: int) -> None:
    (answer,) = engine.generate("x", greedy(most))
    assert (len(answer.tokens), answer.finish, answer.usage.completion_tokens) == (most, "length", most)


def test_no_limit_means_the_context() -> None:
    engine = tiny_engine(context=100)
    (answer,) = engine.generate([random_tokens(30)], Sampling(max_tokens=None, ignore_eos=True))
    assert (answer.finish, answer.usage.completion_tokens) == ("length", 70)


def test_logprobs_are_the_models_own(engine: Engine) -> None:
    """Whatever bias and temperature chose; the alternatives most likely first."""
    prompt = random_tokens(20)
    rules = Sampling(
        max_tokens=5, ignore_eos=True, logprobs=3, logit_bias={65: 100.0}, temperature=0.7, seed=1
    )
    (answer,) = engine.generate([prompt], rules)
    assert answer.tokens == (65,) * 5
    logits = transformers_logits("llama", [*prompt, *answer.tokens])[len(prompt) - 1 : -1]
    for row, reported in zip(logits.log_softmax(-1), answer.logprobs, strict=True):
        assert (reported.token, reported.text) == (65, "A")
        assert reported.logprob == pytest.approx(float(row[65]), abs=1e-3)
        values, tokens = row.topk(3)
        assert [t for t, _, _ in reported.top] == tokens.tolist()
        assert [v for _, _, v in reported.top] == pytest.approx(values.tolist(), abs=1e-3)


def test_logprobs_without_alternatives(engine: Engine) -> None:
    (answer,) = engine.generate("x", greedy(3, logprobs=0))
    assert [len(p.top) for p in answer.logprobs] == [0, 0, 0]
    assert engine.generate("x", greedy(3))[0].logprobs == ()


# company, seeds and preemption


def test_a_seed_does_not_see_its_company(engine: Engine) -> None:
    rules = [Sampling(max_tokens=30, temperature=1.3, seed=n % 3, ignore_eos=True) for n in range(6)]
    together = engine.generate([random_tokens(40)] * 6, rules)
    alone = [tiny_engine().generate([random_tokens(40)], rule)[0].tokens for rule in rules[:3]]
    assert [a.tokens for a in together] == alone * 2
    assert len(set(alone)) == 3


def test_without_a_seed_answers_differ(engine: Engine) -> None:
    answers = engine.generate(["x"] * 4, Sampling(max_tokens=20, temperature=1.0, ignore_eos=True))
    assert len({a.tokens for a in answers}) == 4


def test_preemption_loses_nothing_already_sent() -> None:
    """Three sequences grow into a pool that holds two; all say what they say alone, seeds included."""
    engine = tiny_engine(memory="1MB")
    prompts = [random_tokens(90, n) for n in range(3)]
    rules = [
        Sampling(max_tokens=150, temperature=t, seed=n, ignore_eos=True) for n, t in enumerate((0, 1, 0.5))
    ]
    streams = [engine.stream(p, r) for p, r in zip(prompts, rules, strict=True)]
    heard = [list(s) for s in streams]
    stats = engine.stats()
    assert stats.requests["preempted"] > 0
    for prompt, rule, deltas in zip(prompts, rules, heard, strict=True):
        (alone,) = tiny_engine().generate([prompt], rule)
        assert tuple(t for d in deltas for t in d.tokens) == alone.tokens
        assert said(deltas) == alone.text
        assert [d.usage.completion_tokens for d in deltas] == list(range(1, 151))
        assert {d.usage.cached_tokens for d in deltas} == {0}, "a request's own work is not a hit"
    assert live(engine) == 0


# endings


def test_a_stream_closed_midway_gives_its_pages_back(engine: Engine) -> None:
    stream = engine.stream("x", greedy(50))
    next(stream)
    assert live(engine)
    stream.close()
    assert engine.idle and live(engine) == 0
    assert list(stream) == []


def test_a_dropped_stream_is_aborted(engine: Engine) -> None:
    for n, _ in enumerate(engine.stream("x", greedy(50))):
        if n == 3:
            break
    assert engine.idle and live(engine) == 0


def test_a_stream_collected_inside_a_step_does_not_disturb_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run anywhere, so also between scheduling and settling."""
    engine = tiny_engine()
    loop: list[Any] = [engine.stream("dropped", greedy(20))]
    loop.append(loop)
    next(loop[0])
    forward = engine._core.runner.logits

    def collecting(batch: Any) -> torch.Tensor:
        gc.collect()
        return forward(batch)

    other = engine.stream("other", greedy(5))
    monkeypatch.setattr(engine._core.runner, "logits", collecting)
    del loop
    assert len(list(other)) == 5
    assert engine.idle and live(engine) == 0
    audit_engine(engine)


def test_abort(engine: Engine) -> None:
    request = engine.submit("x", greedy(50))
    engine.step()
    assert engine.abort(request)
    (delta,) = engine.unread()
    assert (delta.request, delta.finish, delta.error) == (request, "abort", None)
    assert not engine.abort(request)
    assert not engine.abort(10**6)
    assert engine.idle and live(engine) == 0


def test_an_aborted_stream_ends(engine: Engine) -> None:
    stream = engine.stream("x", greedy(50))
    next(stream)
    engine.abort(stream.id)
    assert [d.finish for d in stream] == ["abort"]


def test_a_closed_engine_answers_everybody() -> None:
    engine = tiny_engine()
    document = engine.document("text")
    streams = [engine.stream("x", greedy(50)) for _ in range(2)]
    queued = engine.submit("y")
    next(streams[0])
    coming = engine.begin_document("more", name="coming")
    engine.close()
    engine.close()
    for stream in streams:
        with pytest.raises(EngineStopped, match="closed"):
            list(stream)
    last = engine.unread()[-1]
    assert (last.request, last.finish) == (queued, "error")
    assert isinstance(coming.error, EngineStopped)
    for refused in (
        lambda: engine.submit("x"), lambda: engine.generate("x"), lambda: engine.document("x"), engine.step,
        lambda: list(engine.score([1, 2])),
    ):  # fmt: skip
        with pytest.raises(EngineStopped):
            refused()
    document.release()
    assert live(engine) == 0


def test_an_engine_is_a_context() -> None:
    with tiny_engine() as engine:
        engine.generate("x", greedy(1))
    with pytest.raises(EngineStopped):
        engine.generate("x")


@pytest.mark.parametrize("place", ["runner.logits", "memory.seal", "scheduler.settled", "runner.logits"])
def test_an_internal_error_reaches_everybody(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    streams = [engine.stream(p, greedy(9)) for p in ("x", "y")]
    next(streams[0])
    target: Any = engine._core
    *path, name = place.split(".")
    for step in path:
        target = getattr(target, step)
    monkeypatch.setattr(target, name, fail)
    for stream in streams:
        with pytest.raises(EngineStopped, match="broken on purpose"):
            list(stream)
    with pytest.raises(EngineStopped, match="broken on purpose"):
        engine.submit("z")
    assert live(engine) == 0


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("broken on purpose")


def test_a_request_that_ended_in_the_step_that_broke_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two is accepted as finished, the second breaks: both get a last word."""
    engine = tiny_engine()
    ids = [engine.submit("x", greedy(2)), engine.submit("y", greedy(5))]
    engine.step()
    second = engine._core.requests[ids[1]]
    monkeypatch.setattr(second, "accept", fail)
    with pytest.raises(EngineStopped):
        engine.step()
    assert {d.request for d in engine.unread() if d.finish} == set(ids)


def test_a_request_that_found_no_room_in_the_step_that_broke_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = tiny_engine(memory="1MB")
    with engine.document(random_tokens(300)):
        full = engine.submit(random_tokens(300, 1), greedy(5))
        small = engine.submit(random_tokens(10, 2), greedy(5))
        monkeypatch.setattr(engine._core.runner, "logits", fail)
        with pytest.raises(EngineStopped):
            while not engine.idle:
                engine.advance()
        assert {d.request for d in engine.unread() if d.finish} == {full, small}


def test_a_document_released_while_it_is_prefilled_says_so() -> None:
    engine = tiny_engine(chunk=64)
    document = engine.begin_document(random_tokens(300))
    engine.step()
    document.release()
    assert engine.idle and live(engine) == 0
    assert document.error is not None


def test_a_document_interrupted_while_it_is_prefilled_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(chunk=64)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.document("text", name="a")
    monkeypatch.undo()
    engine.document("text", name="a").release()
    assert engine.idle and live(engine) == 0


def test_stats_count_what_happened() -> None:
    engine = Engine(tiny_loaded("llama"), PLAIN, memory="1MB")
    answers: list[Completion] = engine.generate([random_tokens(100), random_tokens(100)], greedy(3))
    engine.abort(engine.submit("x"))
    with engine.document(random_tokens(300)), pytest.raises(PoolFull):
        engine.generate([random_tokens(300, 1)], greedy(1))
    stats = engine.stats().as_dict()
    ended = {"finished": 2, "aborted": 1, "failed": 1}
    assert {name: stats["requests"][name] for name in ended} == ended
    counted = {"computed": 100 + 36 + 236, "cached": 64 + 64, "generated": 6, "dropped": 0}
    assert stats["tokens"] == counted
    assert [a.usage.cached_tokens for a in answers] == [0, 64]
    assert stats["prefix_hits"] == 2
    assert stats["backend"]["reason"] and stats["recipe"]["k"] == "plain"
    assert stats["pool"][0]["reason"]


def test_every_error_is_ours() -> None:
    for kind in (InvalidRequest, EngineStopped, PoolFull, Overloaded, DocumentInUse, UnknownDocument):
        assert issubclass(kind, OctavoError)
