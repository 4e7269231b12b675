"""Wrong input is refused by name in OpenAI's error shape, and the server lives (the fixture checks that)."""

from __future__ import annotations

import tracemalloc
import typing
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import ValidationError

from octavo.errors import (
    EngineStopped,
    InvalidRequest,
    NotFinite,
    OctavoError,
    Overloaded,
    PoolFull,
    UnsupportedModel,
)
from octavo.server.chat import ChatBody
from octavo.server.completions import CompletionBody
from octavo.server.errors import not_valid
from tests.server.conftest import Served


def error(response: httpx.Response, status: int, param: str | None, *words: str) -> dict[str, Any]:
    """The error object, after checking status, `param` and that the message holds `words`."""
    told: dict[str, Any] = response.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert (response.status_code, told["param"]) == (status, param), told
    for word in words:
        assert word in told["message"]
    assert response.headers["x-request-id"].startswith("req_")
    return told


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b'{"model": "org/fake",', "line 1 column"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "Infinity"),
        (b'{"model": "\xff"}', "not JSON"),
        (b'{"model": "\\ud800"}', "surrogates"),
        (b"[1]", "send an object"),
        (b"null", "send an object"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_malformed_json(served: Served, body: bytes, words: str) -> None:
    response = served.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert error(response, 400, None, words)["code"] == "invalid_json"


def test_wrong_content_type(served: Served) -> None:
    response = served.http.post("/v1/completions", data={"model": "org/fake"})
    error(response, 415, None, "x-www-form-urlencoded", "application/json")


def test_body_too_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.body.MAX_BODY_BYTES", 100)
    error(served.complete(prompt="x" * 100), 413, None, "100 are allowed")
    chunks = iter([b'{"model":', b'"' + b"x" * 200])
    response = served.http.post(
        "/v1/completions", content=chunks, headers={"content-type": "application/json"}
    )
    error(response, 413, None, "100 are allowed")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": "warm"}, "temperature", "is 'warm'"),
        ({"temperature": 2.5}, "temperature", "is 2.5; input should be less than or equal to 2"),
        ({"temperature": True}, "temperature", "valid number"),
        ({"top_p": -0.1}, "top_p", "greater than or equal to 0"),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
        ({"top_k": -1}, "top_k", "-1"),
        ({"top_k": 1.5}, "top_k", "1.5"),
        ({"seed": 1 << 64}, "seed", "less than"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": "5"}, "max_tokens", "is '5'"),
        ({"n": 0}, "n", "is 0"),
        ({"n": 129}, "n", "is 129"),
        ({"presence_penalty": 3}, "presence_penalty", "is 3"),
        ({"frequency_penalty": -3}, "frequency_penalty", "is -3"),
        ({"stop": 5}, "stop", "is 5"),
        ({"stop": ""}, "stop.0", "at least 1 character"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ["a", 1]}, "stop.1", "is 1"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "token ids"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "101"),
        ({"logit_bias": {"256": 1}}, "logit_bias", "ids end at 255"),
        ({"stop_token_ids": [999]}, "stop_token_ids", "999"),
        ({"keep": 128}, "keep", "without context_shift nothing is dropped"),
        ({"stream": "yes"}, "stream", "is 'yes'"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream: true"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "did you mean"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "pad",
        ),
        ({"document": 5}, "document", "is 5"),
        ({"model": None}, "model", "is None"),
        ({"tempratur": 1}, "tempratur", "did you mean 'temperature'?"),
        ({"": 1}, "", "unknown request field ''"),
    ],
)
@pytest.mark.parametrize("route", ["chat", "complete"])
def test_common_fields(served: Served, route: str, fields: dict[str, Any], param: str, words: str) -> None:
    error(getattr(served, route)(**fields), 400, param, words)


def test_a_number_too_large_for_a_float(served: Served) -> None:
    body = b'{"model": "org/fake", "prompt": "x", "temperature": 1e999}'
    response = served.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    error(response, 400, "temperature", "is inf")


def test_missing_fields(served: Served) -> None:
    assert error(served.post("/v1/completions", {"prompt": "x"}), 400, "model", "required")["code"] == (
        "missing_required_parameter"
    )
    error(served.post("/v1/completions", {"model": "org/fake"}), 400, "prompt", "required")
    error(served.post("/v1/chat/completions", {"model": "org/fake"}), 400, "messages", "required")
    error(served.post("/v1/documents", {}), 400, "text", "required")


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "at least 1 item"),
        ("hi", "messages", "is 'hi'"),
        (["hi"], "messages.0", "is 'hi'"),
        ([{"role": "user"}], "messages.0.content", "required"),
        ([{"role": "user", "content": None}], "messages.0.content", "required"),
        ([{"role": "user", "content": ""}], "messages", "every message is empty"),
        ([{"role": "user", "content": []}], "messages", "every message is empty"),
        ([{"role": "user", "content": 5}], "messages.0.content", "string or a list of text parts"),
        ([{"role": "robot", "content": "x"}], "messages.0.role", "is 'robot'"),
        ([{"content": "x"}], "messages.0.role", "required"),
        ([{"role": "user", "content": "x", "nmae": "y"}], "messages.0.nmae", "did you mean 'name'?"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages.0.content",
            "image_url",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages.0.content", "input_audio"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text", "required"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages.0.content.0.text", "is 1"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "", "tex": 1}]}],
            "messages.0.content.0.tex",
            "text",
        ),
        ([{"role": "user", "content": ["x"]}], "messages.0.content.0", "is 'x'"),
        (
            [{"role": "tool", "content": "x", "tool_call_id": "y"}],
            "messages.0.tool_call_id",
            "does not call tools",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "x"}]}],
            "messages.0.tool_calls",
            "does not call tools",
        ),
    ],
)
def test_messages(served: Served, messages: Any, param: str, words: str) -> None:
    error(served.chat(messages=messages), 400, param, words)


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        (None, "prompt", "is None"),
        (5, "prompt", "is 5"),
        ({"text": "x"}, "prompt", "must be a string or a list"),
        (["a", ""], "prompt", "prompt[1] is empty"),
        ([[1], []], "prompt", "prompt[1] is empty"),
        ([1, "a"], "prompt", "prompt[1] is 'a'"),
        ([True], "prompt", "prompt[0] is True"),
        ([1.0], "prompt", "prompt[0] is 1.0"),
        ([-1], "prompt", "prompt[0] is -1"),
        ([[[1]]], "prompt", "prompt[0][0] is [1]"),
        ([1, 256], "prompt", "ids end at 255"),
        (["x"] * 1025, "prompt", "1025 choices"),
    ],
)
def test_prompts(served: Served, prompt: Any, param: str, words: str) -> None:
    error(served.complete(prompt=prompt), 400, param, words)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"best_of": 3}, "best_of", "best_of is 3 and n 1"),
        ({"suffix": "end"}, "suffix", "filling in the middle"),
        ({"echo": True, "logprobs": 1}, "echo", "log-probabilities"),
        ({"logprobs": 21}, "logprobs", "is 21"),
        ({"logprobs": True}, "logprobs", "is True"),
        ({"messages": []}, "messages", "unknown request field"),
    ],
)
def test_completion_fields(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    error(served.complete(**fields), 400, param, words)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "does not call tools"),
        ({"tool_choice": "required"}, "tool_choice", "'none' or 'auto'"),
        ({"functions": [{}]}, "functions", "does not call tools"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "constrained output"),
        ({"response_format": {"type": "json_object"}}, "response_format", "constrained output"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"audio": {"voice": "x"}}, "audio", "text only"),
        ({"store": True}, "store", "nothing is stored"),
        ({"store": 0}, "store", "nothing is stored"),
        ({"service_tier": "priority"}, "service_tier", "one tier"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "chat template"),
        ({"web_search_options": {}}, "web_search_options", "does not search"),
        ({"user": 5}, "user", "must be a string"),
        ({"logprobs": 1}, "logprobs", "is 1"),
        ({"top_logprobs": 1}, "top_logprobs", "needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "is 21"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
        ({"prompt": "x"}, "prompt", "unknown request field"),
    ],
)
def test_chat_fields(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    error(served.chat(**fields), 400, param, words)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "n": 1},
        {"response_format": {"type": "text"}, "tools": [], "functions": [], "parallel_tool_calls": True},
        {"tool_choice": "none", "modalities": ["text"], "audio": None, "verbosity": "medium"},
        {"safety_identifier": "x", "prompt_cache_key": "y", "prompt_cache_retention": "24h"},
        {"prediction": {"type": "content", "content": "x"}, "prompt_cache_options": {"mode": "implicit"}},
        {
            "stream_options": None,
            "stop": None,
            "logit_bias": None,
            "max_tokens": 3,
            "max_completion_tokens": 3,
        },
    ],
)
def test_neutral_chat_fields_pass(served: Served, fields: dict[str, Any]) -> None:
    assert served.chat(**fields).status_code == 200


def test_neutral_completion_fields_pass(served: Served) -> None:
    assert served.complete(user="me", best_of=2, n=2, suffix="", echo=False, stop=[]).status_code == 200


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (ChatBody, chat_params.CompletionCreateParamsStreaming),
        (CompletionBody, completion_params.CompletionCreateParamsStreaming),
    ],
)
def test_every_documented_field_is_known(body: type[ChatBody], params: type) -> None:
    """What the installed openai package can send is honoured, neutral or refused with its own reason."""
    documented = set(typing.get_type_hints(params))
    assert documented - set(body.model_fields) - set(body.inert) == set()
    assert set(body.model_fields) & set(body.inert) == set()


@pytest.mark.parametrize(
    ("raised", "status", "code", "retry"),
    [
        (Overloaded("1024 requests wait"), 429, "overloaded", "2"),
        (PoolFull("needs 8 pages, 3 free"), 503, "pool_full", "5"),
        (EngineStopped("closed"), 503, "engine_stopped", "10"),
        (InvalidRequest("the prompt is odd"), 400, "invalid_value", None),
        (UnsupportedModel("no"), 400, "unsupported_model", None),
        (OctavoError("what"), 500, "engine_error", None),
        (NotFinite("float16", 3), 500, "not_finite", None),
        (ZeroDivisionError("secret"), 500, "internal_error", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_engine_errors(
    served: Served, raised: Exception, status: int, code: str, retry: str | None, stream: bool
) -> None:
    served.engine.refuse = raised
    response = served.chat(stream=stream, n=2)
    told = error(response, status, None)
    assert told["code"] == code and response.headers.get("retry-after") == retry
    assert ("secret" in told["message"]) is False
    if code != "internal_error":
        assert told["message"] == str(raised)


def test_too_long_prompt(served: Served) -> None:
    told = error(served.complete(prompt="x" * 5000), 400, "prompt", "5000 tokens", "4096")
    assert told["code"] == "context_length_exceeded"
    messages = [{"role": "user", "content": "x" * 5000}]
    for stream in (False, True):
        error(served.chat(messages=messages, stream=stream), 400, "messages", "tokens", "4096")


def test_queue_limit(served: Served) -> None:
    """Eight samples do not fit five places: all are refused, none stays behind."""
    served.engine.max_requests = 5
    error(served.chat(n=8), 429, None, "try again later")
    assert served.engine.running == {}
    assert served.chat(n=5).status_code == 200


def test_more_samples_than_the_queue_ever_takes(served: Served) -> None:
    """To try again would be refused again: this is no 429."""
    served.engine.max_waiting = 5
    error(served.chat(n=6), 400, "n", "n is 6: 6 samples", "takes 5", "larger --max-waiting")
    error(served.complete(prompt=["x"] * 3, n=2), 400, "n", "3 prompts with n=2: 6 samples", "takes 5")
    error(served.complete(prompt=["x"] * 6), 400, "prompt", "6 prompts with n=1: 6 samples", "takes 5")
    assert served.engine.seen == []
    assert served.chat(n=5).status_code == served.complete(prompt=["x"] * 5).status_code == 200


def test_no_chat_template(served: Served) -> None:
    served.engine.tokenizer.has_chat = False
    error(served.chat(), 400, "messages", "no chat template", "/v1/completions")
    assert served.complete().status_code == 200
    served.engine.tokenizer.has_chat = True


def test_unknown_paths(served: Served) -> None:
    error(served.post("/v1/chat/completion", {}), 404, None, "did you mean /v1/chat/completions?")
    error(served.http.get("/xyz"), 404, None, "known: /health")
    response = served.http.get("/v1/chat/completions")
    error(response, 405, None, "use POST")
    assert response.headers["allow"] == "POST"
    error(served.http.put("/v1/documents/x"), 405, None, "PUT")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", [1] * 200_000),
        ("messages", [{"role": "user", "content": [1] * 200_000}]),
        ("stop", [""] * 200_000),
        ("stop_token_ids", [""] * 200_000),
        ("logit_bias", {str(n): "x" for n in range(100_000)}),
        ("x" * 2_000_000, 1),
    ],
    ids=["messages", "parts", "stop", "stop_token_ids", "logit_bias", "name"],
)
def test_many_wrong_elements_cost_no_more_than_one(field: str, value: Any) -> None:
    """Each complaint would hold its element: a body of a few megabytes took gigabytes."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], field: value}
    tracemalloc.start()
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate(body)
    told = not_valid(caught.value)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told.status == 400 and len(told.message) < 1000 and peak < 30e6
