"""The unmodified `openai` client gets what OpenAI's documentation promises."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.server.conftest import Served

USER = [{"role": "user", "content": "hello there"}]


def test_chat_answers(client: Any) -> None:
    reply = client.chat.completions.create(model="org/fake", messages=USER)
    choice = reply.choices[0]
    assert choice.message.content == "17 tokens, seed None, ending in < hello there>. Goodbye, héllo."
    assert (choice.finish_reason, choice.message.role, choice.logprobs) == ("stop", "assistant", None)
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 17
    assert reply.usage.total_tokens == 17 + len(choice.message.content)


def test_chat_streams_the_same_text(client: Any) -> None:
    whole = client.chat.completions.create(model="org/fake", messages=USER, n=2, seed=5)
    stream = client.chat.completions.create(
        model="org/fake", messages=USER, n=2, seed=5, stream=True, stream_options={"include_usage": True}
    )
    texts, finishes, chunks = ["", ""], {}, list(stream)
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            finishes[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert finishes == {0: "stop", 1: "stop"}
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_without_usage_has_none(client: Any) -> None:
    chunks = list(client.chat.completions.create(model="org/fake", messages=USER, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"


def test_stop_and_length(client: Any) -> None:
    def ask(**fields: object) -> tuple[str | None, str]:
        choice = client.chat.completions.create(model="org/fake", messages=USER, **fields).choices[0]
        return choice.message.content, choice.finish_reason

    assert ask(stop=",") == ("17 tokens", "stop")
    assert ask(stop=["zzz", " seed"]) == ("17 tokens,", "stop")
    assert ask(max_tokens=2) == ("17", "length")
    assert ask(max_completion_tokens=3) == ("17 ", "length")


def test_settings_reach_the_engine(client: Any, served: Served) -> None:
    client.chat.completions.create(
        model="org/fake",
        messages=USER,
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        logit_bias={"65": -100, "66": 2},
        n=2,
        extra_body={"top_k": 7, "min_p": 0.1, "ignore_eos": True, "stop_token_ids": [3]},
    )
    first, second = (sampling for _, sampling in served.engine.seen)
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0.5, 0.9, 7, 0.1)
    assert (first.presence_penalty, first.frequency_penalty) == (1, -1.5)
    assert (first.logit_bias, first.stop_token_ids) == ({65: -100, 66: 2}, (3,))
    assert first.ignore_eos and first.max_tokens is None and first.logprobs is None
    assert (first.seed, second.seed) == (2**63 - 1, 0)


def test_defaults_are_openais(client: Any, served: Served) -> None:
    client.chat.completions.create(model="org/fake", messages=USER)
    client.completions.create(model="org/fake", prompt="x")
    (_, chat), (_, completion) = served.engine.seen
    assert (chat.temperature, chat.top_p, chat.max_tokens, chat.seed) == (1.0, 1.0, None, None)
    assert (completion.temperature, completion.max_tokens) == (1.0, 16)


def test_top_p_zero_is_greedy(client: Any, served: Served) -> None:
    client.chat.completions.create(model="org/fake", messages=USER, top_p=0, temperature=1)
    assert served.engine.seen[0][1].temperature == 0


def test_chat_logprobs(client: Any) -> None:
    asked = {"model": "org/fake", "messages": USER, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**asked).choices[0]
    content = choice.logprobs.content
    assert "".join(entry.token for entry in content) == choice.message.content
    assert (content[-5].token, content[-5].bytes) == ("é", [0xC3, 0xA9])
    assert [top.token for top in content[0].top_logprobs] == ["a", "b"]
    assert content[0].logprob == -0.5
    streamed = [
        entry
        for chunk in client.chat.completions.create(**asked, stream=True)
        for part in chunk.choices
        if part.logprobs
        for entry in part.logprobs.content
    ]
    assert streamed == content


def test_completion_logprobs(client: Any) -> None:
    choice = client.completions.create(model="org/fake", prompt="abc", logprobs=2).choices[0]
    told = choice.logprobs
    assert told is not None and told.tokens is not None and told.top_logprobs is not None
    assert "".join(told.tokens) == choice.text
    assert told.text_offset == list(range(16))
    assert told.top_logprobs[0] == {"3": -0.5, "a": -1.0, "b": -2.0}
    stream = client.completions.create(model="org/fake", prompt="abc", logprobs=2, stream=True)
    offsets = [offset for chunk in stream for offset in chunk.choices[0].logprobs.text_offset]
    assert offsets == told.text_offset
    only_chosen = client.completions.create(model="org/fake", prompt="abc", logprobs=0).choices[0].logprobs
    assert only_chosen is not None and only_chosen.top_logprobs is None


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("abc", ["abc"]),
        (["abc", "d"], ["abc", "d"]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_prompt_forms(client: Any, served: Served, prompt: object, prompts: list[Any]) -> None:
    reply = client.completions.create(model="org/fake", prompt=prompt, n=2, max_tokens=3, seed=0)
    assert [seen for seen, _ in served.engine.seen] == [p for p in prompts for _ in range(2)]
    assert [choice.index for choice in reply.choices] == list(range(2 * len(prompts)))
    assert [choice.text for choice in reply.choices] == [f"{len(p)} t" for p in prompts for _ in range(2)]
    assert reply.usage.prompt_tokens == sum(len(p) for p in prompts)
    assert reply.usage.completion_tokens == 3 * 2 * len(prompts)


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: Any, stream: bool) -> None:
    asked = {
        "model": "org/fake",
        "prompt": [[104, 105], [97]],
        "echo": True,
        "max_tokens": 2,
        "stream": stream,
    }
    reply = client.completions.create(**asked)
    texts = ["", ""]
    for chunk in reply if stream else [reply]:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["hi2 ", "a1 "]


def test_a_long_prompt_is_spelled_beside_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(tokens: object) -> str:
        entered.set()
        assert leave.wait(20)
        return "hi"

    monkeypatch.setattr(served.engine.tokenizer, "decode", slow)
    monkeypatch.setattr(served.engine, "answer", lambda *_: "!")
    with ThreadPoolExecutor(1) as pool:
        echoed = pool.submit(served.complete, prompt=[104, 105], echo=True)
        try:
            assert entered.wait(5)
            assert served.http.get("/health", timeout=5).status_code == 200
        finally:
            leave.set()
        assert echoed.result().json()["choices"][0]["text"] == "hi!"


def test_messages_become_what_templates_know(client: Any, served: Served) -> None:
    earlier = client.chat.completions.create(model="org/fake", messages=USER).choices[0].message
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    client.chat.completions.create(
        model="org/fake",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts, "name": "ann"},
            earlier,
            earlier.model_dump(),
        ],
    )
    prompt = served.engine.seen[-1][0]
    assert prompt == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo", "name": "ann"},
        {"role": "assistant", "content": earlier.content},
        {"role": "assistant", "content": earlier.content},
    ]


def test_models(client: Any) -> None:
    (listed,) = client.models.list()
    assert listed.id == "org/fake" and listed.object == "model" and listed.owned_by == "octavo"
    assert client.models.retrieve("org/fake") == listed
    with pytest.raises(openai.NotFoundError, match="serves 'org/fake'"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="serves 'org/fake'"):
        client.chat.completions.create(model="gpt-4", messages=USER)


def test_document_is_read_and_counted_as_cached(client: Any, served: Served) -> None:
    served.post("/v1/documents", {"text": "x" * 200, "name": "book"}).raise_for_status()
    usages = []
    for n in (1, 3):
        reply = client.chat.completions.create(
            model="org/fake", messages=USER, n=n, extra_body={"document": "book"}
        )
        assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
        usages.append((reply.usage.prompt_tokens, reply.usage.prompt_tokens_details.cached_tokens))
    assert usages == [(217, 200), (217, 200)]
