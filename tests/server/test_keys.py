"""API keys: who comes in, and which keys could let nobody in."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from contextlib import AbstractContextManager

import openai
import pytest

from octavo.errors import InvalidRequest
from octavo.server import create_app
from tests.server.conftest import Served
from tests.server.fake import FakeEngine
from tests.server.test_bad_input import error

Serving = Callable[..., AbstractContextManager[Served]]
KEY = "s3cret-._~+/= key"


def test_only_the_key_comes_in(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    same = hmac.compare_digest

    def comparing(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return same(a, b)

    monkeypatch.setattr("hmac.compare_digest", comparing)
    with serving(FakeEngine(), api_key=KEY) as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["org/fake"]
        wrong = [
            b"",
            b"Bearer",
            f"Basic {KEY}".encode(),
            b"Bearer s3cret",
            "Bearer schlüssel".encode(),
            b"Bearer \xff",
        ]
        for header in wrong:
            response = served.http.get("/v1/models", headers={b"Authorization": header})
            assert error(response, 401, None, "missing or wrong")["code"] == "invalid_api_key"
        assert served.http.get("/v1/models").status_code == 401
        assert served.http.get("/health").status_code == 200
    assert len(compared) == len(wrong) + 2, "every key is compared in constant time"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("schlüssel", "character 5 of 9"),
        ("€", "character 1 of 1"),
        ("a\nb", "character 2 of 3"),
        ("a\x7f", "character 2 of 2"),
        ("", "is empty"),
        (" key", "begins or ends with a space"),
        ("key ", "begins or ends with a space"),
    ],
)
def test_keys_that_nobody_could_send(key: str, words: str) -> None:
    engine = FakeEngine()
    with pytest.raises(InvalidRequest, match=words) as caught:
        create_app(engine, engine, api_key=key)
    assert "schl" not in str(caught.value), "a key is not for logs"
