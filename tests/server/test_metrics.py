"""/metrics, /health and the API key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.errors import EngineStopped
from tests.server.conftest import Served
from tests.server.fake import FakeEngine
from tests.server.test_bad_input import error

Serving = Callable[..., AbstractContextManager[Served]]


def samples(served: Served) -> dict[tuple[str, ...], float]:
    """Every sample of /metrics under its name and sorted label values."""
    text = served.http.get("/metrics").raise_for_status().text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_engine_counts(served: Served) -> None:
    served.post("/v1/documents", {"text": "x" * 65, "name": "book"}).raise_for_status()
    found = samples(served)
    assert found["octavo_pages", "full", "plain", "live"] == 2
    states = [found["octavo_pages", "full", "plain", state] for state in ("live", "cached", "free")]
    assert sum(states) == found["octavo_pages", "full", "plain", "total"]
    assert found["octavo_backend_info", "reference", 'no GPU: "cpu" was asked for'] == 1
    assert found["octavo_recipe_info", "q8_0", "q4_0"] == 1
    assert found["octavo_tokens_total", "computed"] == 10
    assert found["octavo_prefix_hits_total",] == 2
    assert found["octavo_requests", "waiting"] == 0
    assert found["octavo_requests_ended_total", "preempted"] == 0
    assert found["octavo_bytes", "live"] == 1000
    assert found["octavo_tokens_per_second", "decode"] == 2.5
    assert found["octavo_dca_rows_total", "inter"] == 2


def test_latencies_and_statuses(serving: Serving) -> None:
    with serving(FakeEngine(step_s=0.001)) as served:
        served.chat(max_tokens=5, n=2)
        served.chat(max_tokens=5, stream=True)
        served.chat(temperature=9)
        served.http.get("/nowhere")
        found = samples(served)
        assert found["octavo_http_requests_total", "chat_completions", "200"] == 2
        assert found["octavo_http_requests_total", "chat_completions", "400"] == 1
        assert found["octavo_http_requests_total", "none", "404"] == 1
        assert found["octavo_first_token_seconds_count",] == 3
        assert found["octavo_next_token_seconds_count",] == 3 * 4
        assert 0.001 < found["octavo_first_token_seconds_sum",] < 3
        assert found["octavo_http_request_seconds_count", "chat_completions"] == 3


def test_health(served: Served) -> None:
    health = served.http.get("/health").json()
    assert (health["status"], health["model"], health["requests"]["running"]) == ("ok", "org/fake", 0)


@pytest.mark.parametrize("stream", [False, True])
def test_health_after_the_engine_broke(serving: Serving, stream: bool) -> None:
    """The request that met the breakage hears of it; from then on so does whoever watches the server."""
    with serving(FakeEngine(crash=(2, EngineStopped("the engine stopped: no memory")))) as served:
        assert "no memory" in served.chat(stream=stream).text
        error(served.http.get("/health"), 503, None, "the engine stopped: no memory")


def test_api_key(serving: Serving) -> None:
    with serving(FakeEngine(), api_key="sesame") as served:
        assert served.http.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic sesame"}):
            response = httpx.get(f"{served.url}/v1/models", headers=headers)
            told = error(response, 401, None, "Authorization: Bearer KEY")
            assert told["code"] == "invalid_api_key"
        error(served.chat(), 401, None)
        assert served.http.get("/metrics").status_code == 401
    with serving(FakeEngine(), api_key="sesame") as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sesame") as client:
            assert client.models.list().data[0].id == "org/fake"
        with (
            openai.OpenAI(base_url=f"{served.url}/v1", api_key="open") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
