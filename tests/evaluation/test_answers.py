"""Answers from engines and servers: what fails or is empty is counted, never scored as wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError

import pytest

from octavo.errors import InvalidFile, InvalidRequest
from octavo.evaluation.answers import Answer, EngineAnswerer, Question
from octavo.evaluation.client import UrlAnswerer
from octavo.evaluation.log import Item, SampleLog, Scored, answer_all
from octavo.evaluation.ruler.run import Cell
from octavo.evaluation.setup import Bench
from octavo.recipe import Recipe
from tests.evaluation.bench import loaded
from tests.evaluation.words import WordTokenizer


class Handler(BaseHTTPRequestHandler):
    """Prompt [n] asks for behaviour n."""

    seen: list[dict[str, Any]]
    busy = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"path": self.path, "auth": self.headers.get("Authorization"), **body})
        what = body["prompt"][0] if "prompt" in body else "chat"
        if what == 3:
            time.sleep(3.0)
        if what == 4 and type(self).busy < 1:
            type(self).busy += 1
            return self.reply(429, {"error": "busy"}, {"Retry-After": "0"})
        if what == 5:
            return self.reply(500, {"error": "broken"})
        if what == 6:
            return self.reply(200, {"no": "choices"})
        if what == 7:
            return self.reply(200, {"choices": [{"text": "cut"}]}, {"Content-Length": "1000"})
        text = "" if what == 2 else f"answer {what}"
        self.reply(200, {"choices": [{"text": text, "message": {"content": text}}]})

    def reply(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except BrokenPipeError:
            pass  # the client gave up, as it should

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Fresh", (Handler,), {"seen": [], "busy": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/v1", handler
        finally:
            http.shutdown()
            thread.join()


def test_a_server_answers_in_order_and_failures_are_named() -> None:
    with server() as (url, handler):
        client = UrlAnswerer(url, "m", timeout=1.5, concurrent=3, api_key="k")
        asked = (Question(8, tokens=(n, 9)) for n in (1, 2, 3, 4, 5, 6, 1))
        answers = list(client.answers(asked))
    assert [a.status for a in answers] == ["ok", "empty", "timeout", "ok", "error", "error", "ok"]
    assert answers[0].text == answers[6].text == "answer 1" and answers[3].text == "answer 4"
    assert "1.5 s" in str(answers[2].error) and "HTTP 500" in str(answers[4].error)
    first = handler.seen[0]
    assert first["path"] == "/v1/completions" and first["auth"] == "Bearer k"
    assert first["temperature"] == 0 and first["max_tokens"] == 8 and first["model"] == "m"


def test_chats_and_texts_are_sent_as_such() -> None:
    tokenizer = WordTokenizer()
    with server() as (url, handler):
        client = UrlAnswerer(url, "m", send="text", tokenizer=tokenizer, timeout=5)
        ids = tuple(tokenizer.encode("hello world"))
        assert client.answer(Question(4, tokens=ids)).status == "ok"
        assert client.answer(Question(4, messages=({"role": "user", "content": "hi"},))).text == "answer chat"
    assert handler.seen[0]["prompt"] == "hello world"
    assert handler.seen[1]["path"] == "/v1/chat/completions"
    assert handler.seen[1]["messages"] == [{"role": "user", "content": "hi"}]


def test_nobody_there_is_an_error() -> None:
    answer = UrlAnswerer("http://127.0.0.1:9/v1", "m", timeout=2).answer(Question(4, tokens=(1,)))
    assert answer.status == "error" and "127.0.0.1:9" in str(answer.error)
    with pytest.raises(InvalidRequest, match="http://"):
        UrlAnswerer("127.0.0.1:9", "m")
    with pytest.raises(InvalidRequest, match="tokenizer"):
        UrlAnswerer("http://x", "m", send="text")


def test_an_engine_answers_a_batch_and_refusals_are_errors() -> None:
    bench = Bench(loaded())
    asked = [Question(4, tokens=(1, 2, 3)), Question(4, tokens=(7,) * 9000), Question(4, tokens=(4, 5))]
    with bench.engine(Recipe(), tokens=256, sequences=2) as engine:
        answers = list(EngineAnswerer(engine, batch=3).answers(iter(asked)))
        [alone] = engine.generate([[4, 5]])[:1]
    assert [a.status for a in answers][1] == "error" and "9001 tokens" in str(answers[1].error)
    assert alone.text.startswith(answers[2].text) or answers[2].status == "empty"


class Scripted:
    """Gives out prepared answers, and counts what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.left, self.asked = list(answers), 0

    def answers(self, questions: Iterator[Question]) -> Iterator[Answer]:
        for _ in questions:
            self.asked += 1
            yield self.left.pop(0)


def items(count: int) -> list[Item]:
    return [
        Item(f"t/{n}", Question(1), lambda t: float("right" in t), {"tokens": 100 + n}) for n in range(count)
    ]


def test_only_answers_are_scored(tmp_path: Path) -> None:
    script = Scripted(
        Answer.of("right"),
        Answer.of(" \n"),
        Answer.failed("x"),
        Answer.failed("y", "timeout"),
        Answer.of("no"),
    )
    scored = answer_all(script, items(5), SampleLog(tmp_path / "log", {}), lambda done, total: None)
    assert [s.score for s in scored] == [1.0, None, None, None, 0.0]
    row = Cell("t", 128, scored, "plain:plain").as_row()
    assert (row["score"], row["n"], row["scored"]) == (50.0, 5, 2)
    assert (row["empty"], row["errors"], row["timeouts"]) == (1, 1, 1)
    nothing = Cell("t", 128, scored[1:2], "plain:plain").as_row()
    assert nothing["score"] is None and nothing["interval"] is None


def test_a_log_keeps_answers_and_asks_failures_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = Scripted(Answer.of("right"), Answer.failed("x"), Answer.of(""))
    answer_all(first, items(3), SampleLog(path, {"run": 1}), lambda done, total: None)
    path.write_bytes(path.read_bytes() + b'{"key": "t/9", "sta\xc3')  # cut off while writing a character
    again = Scripted(Answer.of("right"))
    scored = answer_all(again, items(3), SampleLog(path, {"run": 1}), lambda done, total: None)
    assert again.asked == 1 and [s.status for s in scored] == ["ok", "ok", "empty"]
    with pytest.raises(InvalidFile, match=r"another run.*take another --out"):
        SampleLog(path, {"run": 2})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFile, match="its first line is damaged"):
        SampleLog(path, {"run": 1})


def test_a_server_that_does_not_even_connect_in_time_is_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: Any, **options: Any) -> None:
        raise URLError(TimeoutError("timed out"))

    monkeypatch.setattr("octavo.evaluation.client.urlopen", late)
    assert UrlAnswerer("http://x/v1", "m").answer(Question(4, tokens=(1,))).status == "timeout"


def test_answers_with_lines_of_their_own_are_taken_up_again(tmp_path: Path) -> None:
    """Unicode has line ends that JSON leaves as they are."""
    log = SampleLog(tmp_path / "log", {"run": 1})
    texts = ["a", "b\u2028c", "d\u2029e", "f\x85g", "h"]
    for n, text in enumerate(texts):
        log.add(Scored(f"k{n}", "ok", 1.0, text, None, {}))
    for _ in range(2):
        again = SampleLog(tmp_path / "log", {"run": 1})
        assert [s.completion for s in again.done.values()] == texts


def test_a_reply_that_breaks_off_is_an_error() -> None:
    with server() as (url, _):
        answerer = UrlAnswerer(url, "m", timeout=10, concurrent=1)
        found = list(answerer.answers(iter([Question(5, tokens=(7,)), Question(5, tokens=(1,))])))
    assert [answer.status for answer in found] == ["error", "ok"]
    assert found[0].error is not None and found[0].error.startswith("IncompleteRead")


def test_half_a_surrogate_pair_in_an_answer_is_kept(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "log", {"run": 1})
    log.add(Scored("a", "ok", 1.0, "half \ud83d of it", None, {}))
    for _ in range(2):
        log = SampleLog(tmp_path / "log", {"run": 1})
        assert log.done["a"].completion == "half \ud83d of it"
