"""`octavo chat` on a tiny model, through a pipe."""

from __future__ import annotations

import os
import re
import signal

import pytest

from octavo import Engine, Sampling
from octavo.cli.chat import Conversation
from tests.cli.conftest import TEXT, Octavo

LONG = b"Tell me " + b"a very long story " * 12 + b"please\n"


def cached(err: str) -> list[int]:
    return [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) cached", err)]


def test_later_turns_read_earlier_ones_from_pages(octavo: Octavo, model: str) -> None:
    talk = octavo("chat", model, "-n", "5", stdin=LONG + b"\nAnd then?\n/exit\nnot asked\n")
    first, second = cached(talk.err)
    assert talk.status == 0 and first == 0 and second >= 192 and second % 64 == 0


def test_reset_forgets(octavo: Octavo, model: str) -> None:
    once = octavo("chat", model, "-n", "5", stdin=b"Hello\n").out
    assert octavo("chat", model, "-n", "5", stdin=b"Hello\n/reset\nHello\n").out == once * 2


def test_a_document_opens_the_conversation(octavo: Octavo, model: str, document: str) -> None:
    talk = octavo("chat", model, "-n", "3", "--document", document, stdin=b"One?\nTwo?\n")
    assert [n >= len(TEXT) for n in cached(talk.err)] == [True, True]


def test_unknown_commands_are_told(octavo: Octavo, model: str) -> None:
    talk = octavo("chat", model, stdin=b"/clear\n")
    assert talk.status == 0 and "unknown command '/clear'" in talk.err and talk.out == ""


def test_a_model_without_template_is_refused(octavo: Octavo, base_model: str) -> None:
    refused = octavo("chat", base_model, stdin=b"Hello\n")
    assert refused.status == 2 and "no chat template" in refused.err


def test_a_full_context_is_told_and_the_chat_goes_on(octavo: Octavo, model: str) -> None:
    lines = f"{'word ' * 100}\nHi\n".encode()
    talk = octavo("chat", model, "--context", "200", "-n", "3", stdin=lines)
    assert talk.status == 0 and "/reset starts anew, and --context-shift" in talk.err
    assert talk.err.count("generated in") == 1


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(model) as engine:
        talk = Conversation(engine, Sampling(50, ignore_eos=True), None, None)
        with monkeypatch.context() as patch:
            patch.setattr("octavo.cli.chat.click.echo", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):  # the second press, while the first is being told
                talk.answer("Hello")
        assert engine.idle
        live = engine.stats().pages["full"]
        assert live["plain"]["live"] == live["packed"]["live"] == 0
        talk.answer("Hello again")
    assert "50 generated" in capsys.readouterr().err
