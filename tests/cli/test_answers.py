"""Several requests in the foreground, and Ctrl-C among them."""

from __future__ import annotations

import os
import signal

import pytest

from octavo import Engine, Sampling
from octavo.cli.answers import Answer, answer_all, load_document, stream
from octavo.errors import PromptTooLong
from tests.cli.conftest import TEXT

PROMPTS = [("a", "First?"), ("b", "Second, longer?")]
SAMPLING = Sampling(12, ignore_eos=True)


def held(engine: Engine) -> int:
    return sum(kind["live"] for group in engine.stats().pages.values() for kind in group.values())


def press(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_answers_are_those_of_generate(model: str) -> None:
    with Engine(model) as engine:
        answers = answer_all(engine, PROMPTS, SAMPLING)
        expected = engine.generate([prompt for _, prompt in PROMPTS], SAMPLING)
    assert [a.text for a in answers] == [c.text for c in expected]
    assert [(a.name, a.tokens, a.finish) for a in answers] == [("a", 12, "length"), ("b", 12, "length")]


def test_a_refused_prompt_leaves_none_behind(model: str) -> None:
    with Engine(model, context=64) as engine:
        with pytest.raises(PromptTooLong):
            answer_all(engine, [*PROMPTS, ("c", "long " * 20)], Sampling(4))
        assert engine.idle and held(engine) == 0


def test_ctrl_c_aborts_all(model: str) -> None:
    with Engine(model) as engine:
        with pytest.raises(KeyboardInterrupt):
            answer_all(engine, PROMPTS, SAMPLING, on_step=press)
        assert engine.stats().tokens["generated"] <= len(PROMPTS)
        assert engine.idle and held(engine) == 0 and engine.stats().requests["aborted"] == 2


def test_ctrl_c_aborts_a_stream(model: str) -> None:
    with Engine(model) as engine:
        with pytest.raises(KeyboardInterrupt):
            for n, _ in enumerate(stream(engine, "Hello", SAMPLING, Answer("1"))):
                assert n == 0, "went on after Ctrl-C"
                press()
        assert engine.idle and held(engine) == 0 and engine.stats().requests["aborted"] == 1


def test_a_document_tells_its_progress(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(model, chunk=128) as engine:
        document = load_document(engine, TEXT)
        assert document.tokens > len(TEXT) and engine.documents[document.name] is document
    shown = capsys.readouterr().err
    assert "reading the document: 0 of" in shown and "read the document:" in shown
