"""The server over the real engine, on a tiny random model, through the unmodified `openai` client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from octavo import AsyncEngine, Engine, Recipe
from tests.server.conftest import Served, running
from tests.server.test_bad_input import error
from tests.tiny import tiny_loaded

TEXT = "The lighthouse keeper counted forty-two ships before the storm. " * 10


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    engine = Engine(
        tiny_loaded("llama"), Recipe(k="q8_0", v="q4_0"), device="cpu", memory="64MB", context=2048
    )
    with running(engine, AsyncEngine(engine), grace_s=5) as served:
        yield served


@pytest.fixture(scope="module")
def client(real: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def live(served: Served) -> int:
    groups = served.engine.stats().as_dict()["pages"].values()
    return sum(kind["live"] for group in groups for kind in group.values())


def test_agents_share_a_document(real: Served, client: Any) -> None:
    model = client.models.list().data[0].id
    before = live(real)
    made = real.post("/v1/documents", {"text": TEXT, "name": "book"}).raise_for_status().json()
    assert made["tokens"] > 600 and made["bytes"] > 0 and made["pages"] == -(-made["tokens"] // 64)

    def ask(question: str) -> tuple[str, int, int]:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"document": "book", "ignore_eos": True},
        )
        *chunks, last = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert last.usage is not None and last.usage.prompt_tokens_details is not None
        return text, last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens or 0

    questions = ["How many ships?", "Who counted?", "When?"]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(ask, questions))
    assert together == [ask(question) for question in questions]
    assert all(cached == made["tokens"] < prompt for _, prompt, cached in together)
    assert real.http.delete("/v1/documents/book").status_code == 200
    assert live(real) == before


def test_samples_share_a_prompt(real: Served, client: Any) -> None:
    asked = {"model": real.engine.name, "prompt": TEXT[:300], "max_tokens": 8, "seed": 3, "logprobs": 2}
    client.completions.create(**asked)
    whole, again = (client.completions.create(**asked, n=3) for _ in range(2))
    assert [choice.text for choice in whole.choices] == [choice.text for choice in again.choices]
    assert len({choice.text for choice in whole.choices}) == 3
    assert whole.usage.completion_tokens <= 24 and whole.usage.prompt_tokens < 310
    assert whole.usage.prompt_tokens_details.cached_tokens >= 256
    for choice in whole.choices:
        assert all(-20 < logprob <= 0 for logprob in choice.logprobs.token_logprobs)
        assert all(1 <= len(top) <= 3 for top in choice.logprobs.top_logprobs)


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_samples_are_tokenised_once(real: Served, monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    texts, plain = [], real.engine.tokenizer._plain

    def tokens(text: str, *, control: bool = True) -> list[int]:
        texts.append(text)
        return plain(text, control=control)

    monkeypatch.setattr(real.engine.tokenizer, "_plain", tokens)
    body: dict[str, Any] = {"model": real.engine.name, "max_tokens": 2, "n": 3}
    body |= {"prompt": TEXT} if route == "completions" else {"messages": [{"role": "user", "content": TEXT}]}
    assert len(real.post(f"/v1/{route}", body).raise_for_status().json()["choices"]) == 3
    assert sum(TEXT in text for text in texts) == 1


def test_logprobs_lie_where_they_say(real: Served, client: Any) -> None:
    """Random bytes: most characters are made of several tokens, or are none."""
    asked = {"model": real.engine.name, "seed": 5, "temperature": 1.5, "max_tokens": 60}
    chat = client.chat.completions.create(
        **asked, messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1
    ).choices[0]
    octets = [octet for entry in chat.logprobs.content for octet in entry.bytes or ()]
    assert bytes(octets).decode(errors="replace") == chat.message.content
    assert any(entry.token.startswith("\\x") for entry in chat.logprobs.content)
    whole = client.completions.create(**asked, prompt="x", logprobs=1).choices[0]
    for token, offset in zip(whole.logprobs.tokens, whole.logprobs.text_offset, strict=True):
        assert token.startswith("bytes:") or whole.text[offset:].startswith(token)
    chunks = list(client.completions.create(**asked, prompt="x", logprobs=1, stream=True))
    offsets = [offset for chunk in chunks for offset in chunk.choices[0].logprobs.text_offset]
    assert offsets == whole.logprobs.text_offset


def test_client_gone_frees_pages(real: Served) -> None:
    before = live(real)
    body = {"model": real.engine.name, "prompt": TEXT, "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{real.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert live(real) > before
    end = time.monotonic() + 5
    while live(real) > before:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert real.engine.stats().as_dict()["requests"]["aborted"] >= 1


def test_looking_does_not_wait_for_the_work(real: Served) -> None:
    """/health and /metrics answer while the engine steps without a pause."""
    body = {"model": real.engine.name, "prompt": TEXT, "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{real.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert real.http.get("/health").json()["requests"]["running"] == 1
        for path in ("/health", "/metrics", "/v1/documents") * 5:
            started = time.monotonic()
            real.http.get(path).raise_for_status()
            assert time.monotonic() - started < 5


def test_the_queue_takes_as_many_samples_as_it_says() -> None:
    engine = Engine(tiny_loaded("llama"), memory="16MB", max_sequences=1, max_waiting=4)
    with running(engine, AsyncEngine(engine), grace_s=5) as served:
        body = {"model": engine.name, "prompt": "x", "max_tokens": 2}
        error(served.post("/v1/completions", body | {"n": 5}), 400, "n", "takes 4")
        assert len(served.post("/v1/completions", body | {"n": 4}).json()["choices"]) == 4


def test_refusals_of_the_engine(real: Served, client: Any) -> None:
    name = real.engine.name
    with pytest.raises(openai.BadRequestError, match="2048") as caught:
        client.completions.create(model=name, prompt="x" * 3000)
    assert caught.value.code == "context_length_exceeded"
    error(real.post("/v1/completions", {"model": name, "prompt": [100000]}), 400, "prompt", "100000")
    real.post("/v1/documents", {"text": "x", "name": "twice"}).raise_for_status()
    error(real.post("/v1/documents", {"text": "x", "name": "twice"}), 400, "name", "'twice'")
    real.http.delete("/v1/documents/twice").raise_for_status()
    long = "x" * 3000
    error(real.post("/v1/documents", {"text": long}), 400, "text", "2048")
    chat = {"model": name, "messages": [{"role": "user", "content": long}]}
    error(real.post("/v1/chat/completions", chat), 400, "messages", "2048")
    asked = {"model": name, "prompt": "x", "context_shift": True}
    error(real.post("/v1/completions", asked), 400, "context_shift", "Dual Chunk Attention")
    roles = [{"role": "assistant", "content": "x"}]
    real.post("/v1/documents", {"text": "x", "name": "start"}).raise_for_status()
    behind = {"model": name, "messages": roles, "document": "start"}
    error(real.post("/v1/chat/completions", behind), 400, "messages", "first message is not the user's")
    real.http.delete("/v1/documents/start").raise_for_status()
    assert client.completions.create(model=name, prompt="still here").choices[0].finish_reason in (
        "stop",
        "length",
    )
