"""A real uvicorn server in a thread over a scripted engine, whose script is reset for each test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from octavo.server.app import create_app
from octavo.server.serve import Server, bind, url
from tests.server.fake import FakeEngine


@dataclass
class Served:
    """A running server: its engine, and a plain client whose base is its URL."""

    engine: Any
    url: str
    server: Server
    http: httpx.Client

    def post(self, path: str, body: Any, **settings: Any) -> httpx.Response:
        return self.http.post(path, json=body, **settings)

    def chat(self, **fields: Any) -> httpx.Response:
        """A chat request with one short message, unless `fields` says otherwise."""
        messages = [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", {"model": "org/fake", "messages": messages} | fields)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": "org/fake", "prompt": "hi"} | fields)


@contextmanager
def running(
    engine: Any, worker: Any = None, *, api_key: str | None = None, grace_s: float = 1
) -> Iterator[Served]:
    """A server for `engine` on a free port, stopped at the end. A scripted engine is its own worker."""
    ready = threading.Event()
    with bind("127.0.0.1", 0) as listener:
        app = create_app(engine, worker or engine, api_key=api_key)
        server = Server(app, grace_s=grace_s, ready=ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        address = url("127.0.0.1", listener)
        thread.start()
        assert ready.wait(10)
        try:
            with httpx.Client(base_url=address, timeout=10) as http:
                yield Served(engine, address, server, http)
        finally:
            server.should_exit = True
            thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="package")
def server() -> Iterator[Served]:
    with running(FakeEngine()) as served:
        yield served


@pytest.fixture
def served(server: Served) -> Iterator[Served]:
    """The shared server; afterwards it must still answer, with nothing left running."""
    server.engine.__init__()
    yield server
    server.engine.refuse = server.engine.crash = server.engine.hang_at = server.engine.abort_at = None
    server.engine.step_s, server.server.service.stopped = 0, None
    assert server.chat().status_code == 200
    assert server.engine.running == {}


@pytest.fixture(scope="package")
def openai_client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def client(served: Served, openai_client: openai.OpenAI) -> openai.OpenAI:
    """The openai package's client, as it comes."""
    return openai_client


@pytest.fixture
def serving() -> Callable[..., Any]:
    """Starts a server of one's own: `with serving(FakeEngine(), api_key="k") as served`."""
    return running
