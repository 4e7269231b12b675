"""However a request ends, the client hears how, and its pages are free."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx
import openai
import pytest

from octavo.errors import InvalidRequest, OctavoError, PoolFull
from octavo.server.serve import bind
from tests.server.conftest import Served
from tests.server.fake import FakeEngine
from tests.server.test_bad_input import error

Serving = Callable[..., AbstractContextManager[Served]]
BODY = {"model": "org/fake", "messages": [{"role": "user", "content": "x" * 200}]}


def wait_for(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.iter_lines() if line]


def test_client_gone_from_a_stream(served: Served) -> None:
    served.engine.step_s = 0.05
    with served.http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True, "n": 3}) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert served.engine.live_pages == 12
    wait_for(lambda: served.engine.live_pages == 0, 1)
    assert (served.engine.aborted, served.engine.finished) == (3, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_client_gone_before_the_first_byte(served: Served, stream: bool, path: str) -> None:
    """The reply has not begun: a streamed one waits for its first token, the other for its last."""
    served.engine.hang_at = 0 if stream else 5
    body = BODY if "chat" in path else {"model": "org/fake", "prompt": "x" * 200}
    with pytest.raises(httpx.ReadTimeout):
        served.post(path, body | {"stream": stream}, timeout=0.2)
    wait_for(lambda: served.engine.aborted == 1, 2)
    assert served.engine.live_pages == 0


def test_client_gone_while_its_document_is_made(served: Served) -> None:
    served.engine.step_s = 0.5
    with pytest.raises(httpx.ReadTimeout):
        served.post("/v1/documents", {"text": "x", "name": "orphan"}, timeout=0.1)
    time.sleep(0.6)
    assert served.engine.documents == {}


def test_client_gone_in_the_middle_of_its_body(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99"
        )
        connection.sendall(f"{head}\r\n\r\n{{".encode())
    assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize("in_delta", [False, True])
def test_error_in_mid_stream_is_an_event(served: Served, client: Any, in_delta: bool) -> None:
    served.engine.crash, served.engine.crash_in_delta = (3, PoolFull("needs 2 pages, 0 free")), in_delta
    with served.http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as response:
        assert response.status_code == 200
        *chunks, last = events(response)
    assert json.loads(last)["error"]["code"] == "pool_full"
    assert "".join(json.loads(c)["choices"][0]["delta"].get("content", "") for c in chunks) == "206"
    with pytest.raises(openai.APIError, match="needs 2 pages, 0 free"):
        list(client.chat.completions.create(**BODY, stream=True))


@pytest.mark.parametrize("in_delta", [False, True])
def test_error_in_mid_answer_is_a_reply(served: Served, in_delta: bool) -> None:
    served.engine.crash, served.engine.crash_in_delta = (3, PoolFull("needs 2 pages, 0 free")), in_delta
    response = served.chat(n=2)
    error(response, 503, None, "needs 2 pages")
    assert response.headers["retry-after"] == "5"


def test_an_abort_nobody_asked_for_is_told(served: Served) -> None:
    served.engine.abort_at = 2
    assert error(served.chat(), 503, None, "aborted this request")["code"] == "aborted"
    assert '"code": "aborted"' in served.chat(stream=True).text
    assert served.http.get("/health").status_code == 200


def test_event_stream_format(served: Served) -> None:
    response = served.chat(stream=True, max_tokens=1)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store" and "content-length" not in response.headers
    assert response.text.endswith("data: [DONE]\n\n")
    assert all(block.startswith("data: ") for block in response.text.split("\n\n") if block)
    assert '"usage"' not in response.text


def test_every_event_has_usage_when_it_is_asked_for(served: Served) -> None:
    response = served.chat(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = [block.removeprefix("data: ") for block in response.text.split("\n\n") if block]
    assert chunks and all('"usage": null' in chunk for chunk in chunks)
    assert json.loads(last)["usage"]["prompt_tokens"] == 8 and done == "[DONE]"


def test_many_clients_at_once(served: Served) -> None:
    served.engine.step_s = 0.001

    def ask(n: int) -> str:
        reply = served.post(
            "/v1/completions", {"model": "org/fake", "prompt": f"client {n:02}", "stop": "Good"}
        )
        return str(reply.raise_for_status().json()["choices"][0]["text"])

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(24)))
    assert len(set(answers)) == 1 and answers[0] == "9 tokens, seed N"


def stop(served: Served) -> None:
    served.server.should_exit = True
    wait_for(lambda: served.server.service.draining)


def test_stop_lets_requests_finish(serving: Serving) -> None:
    with serving(FakeEngine(step_s=0.01), grace_s=10) as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.chat)
        wait_for(lambda: bool(served.engine.running))
        stop(served)
        assert answer.result(10).status_code == 200
    assert served.engine.closed


def test_stop_ends_with_an_error_within_its_bound(serving: Serving) -> None:
    """The stream, the answer and the document would never end by themselves."""

    def stream() -> list[str]:
        with served.http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as response:
            return events(response)

    with serving(FakeEngine(hang_at=3), grace_s=0.3) as served, ThreadPoolExecutor(3) as pool:
        begun, whole = pool.submit(stream), pool.submit(served.chat)
        wait_for(lambda: served.engine.hanging == 2)
        served.engine.hang_at = 0
        made = pool.submit(served.post, "/v1/documents", {"text": "x"})
        wait_for(lambda: served.engine.hanging == 3)
        started = time.monotonic()
        stop(served)
        last = json.loads(begun.result(5)[-1])
        assert last["error"]["code"] == "engine_stopped" and "send it again later" in last["error"]["message"]
        error(whole.result(5), 503, None, "the server is stopping")
        error(made.result(5), 503, None, "the server is stopping")
        assert 0.25 < time.monotonic() - started < 4
    assert served.engine.running == {} and served.engine.closed


def test_no_new_work_while_stopping(serving: Serving) -> None:
    """A connection that was open before the stop is told; new ones are not accepted."""
    with serving(FakeEngine(step_s=0.02), grace_s=10) as served, httpx.Client(base_url=served.url) as late:
        host, port = served.url.removeprefix("http://").split(":")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(served.chat)
            wait_for(lambda: bool(served.engine.running))
            served.server.service.draining = True
            response = late.post("/v1/chat/completions", json=BODY)
            error(response, 503, None, "the server is stopping")
            health = late.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "draining")
            assert answer.result(10).status_code == 200
            stop(served)
        wait_for(lambda: not served.server.started or refused(host, int(port)))


def refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionError:
        return True
    return False


def test_port_in_use_is_an_error_with_a_next_move() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OctavoError, match=f"port {port}: another program .* choose another port"):
            bind("127.0.0.1", port)


def test_addresses_that_cannot_be() -> None:
    with pytest.raises(OctavoError, match=r"does not have that address"):
        bind("203.0.113.1", 0)
    with pytest.raises(OctavoError, match=r"'no such host' has no address"):
        bind("no such host", 0)
    with pytest.raises(InvalidRequest, match="port is 70000"):
        bind("127.0.0.1", 70000)


def test_threads_are_gone_after_a_stop(serving: Serving) -> None:
    with serving(FakeEngine()) as served:
        served.chat().raise_for_status()
        before = threading.active_count()
    assert threading.active_count() < before
