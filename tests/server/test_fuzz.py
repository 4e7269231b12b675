"""Whatever JSON arrives, the reply is JSON of the promised shape and no request stays behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.server.chat import ChatBody
from octavo.server.completions import CompletionBody
from tests.server.conftest import Served

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["text", "user", "assistant", "org/fake", "auto", "book"]),
)
KEYS = st.sampled_from(["role", "content", "type", "text", "1", "65", "include_usage"]) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def bodies(
    schema: type[ChatBody] | type[CompletionBody], good: dict[str, Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """A good body with up to four fields replaced or added."""
    names = st.sampled_from([*schema.model_fields, *schema.inert]) | st.text(max_size=4)
    return st.dictionaries(names, VALUES, max_size=4).map(lambda changes: good | changes)


CHAT = bodies(
    ChatBody, {"model": "org/fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
)
COMPLETION = bodies(CompletionBody, {"model": "org/fake", "prompt": [65, 66], "max_tokens": 3})


def check(served: Served, path: str, body: Any) -> None:
    content = json.dumps(body)
    response = served.http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code in (200, 201, 400, 404, 429), response.text
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert len(response.json()["error"]["message"]) < 2000
    assert served.engine.running == {}


@pytest.mark.parametrize(
    ("path", "strategy"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
)
def test_any_field_values(served: Served, path: str, strategy: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(strategy)
    def run(body: Any) -> None:
        check(served, path, body)

    run()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/documents"])
def test_any_json(served: Served, path: str) -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(VALUES)
    def run(body: Any) -> None:
        check(served, path, body)

    run()
