"""Documents over HTTP: create, list, show, read, delete."""

from __future__ import annotations

import threading

import pytest

from tests.server.conftest import Served
from tests.server.test_bad_input import error


def test_life_of_a_document(served: Served) -> None:
    assert served.http.get("/v1/documents").json() == {"object": "list", "data": []}
    created = served.post("/v1/documents", {"text": "x" * 130, "name": "book"})
    assert created.status_code == 201 and created.headers["location"] == "/v1/documents/book"
    shown = served.http.get("/v1/documents/book").json()
    assert created.json() == shown
    assert {key: shown[key] for key in ("id", "object", "tokens", "pages", "bytes", "users", "raw")} == {
        "id": "book",
        "object": "document",
        "tokens": 130,
        "pages": 3,
        "bytes": 13000,
        "users": 0,
        "raw": False,
    }
    assert served.http.get("/v1/documents").json()["data"] == [shown]
    deleted = served.http.delete("/v1/documents/book")
    assert deleted.json() == {"id": "book", "object": "document", "deleted": True}
    error(served.http.get("/v1/documents/book"), 404, "document", "none is held")


def test_unnamed_and_raw_token_documents(served: Served) -> None:
    first = served.post("/v1/documents", {"text": [1, 2, 3], "raw": True}).json()
    assert first["tokens"] == 3 and first["raw"] is True
    served.complete(document=first["id"]).raise_for_status()


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"text": ""}, "text", "empty"),
        ({"text": []}, "text", "empty"),
        ({"text": 5}, "text", "is 5"),
        ({"text": ["a"]}, "text", "text[0] is 'a'"),
        ({"text": [256]}, "text", "ids end at 255"),
        ({"text": "x", "name": "a/b"}, "name", "'a/b'"),
        ({"text": "x", "name": ""}, "name", "''"),
        ({"text": "x", "name": "n" * 129}, "name", "nnn"),
        ({"text": "x", "raw": "yes"}, "raw", "'yes'"),
        ({"txt": "x"}, "txt", "did you mean 'text'?"),
    ],
)
def test_wrong_documents(served: Served, body: object, param: str, words: str) -> None:
    error(served.post("/v1/documents", body), 400, param, words)


def test_unknown_and_taken_names(served: Served) -> None:
    served.post("/v1/documents", {"text": "x", "name": "report"}).raise_for_status()
    error(served.post("/v1/documents", {"text": "y", "name": "report"}), 400, "name", "'report' exists")
    error(served.chat(document="reprot"), 404, "document", "did you mean 'report'?")
    error(served.http.delete("/v1/documents/reprot"), 404, "document", "did you mean 'report'?")


def test_chat_and_raw_do_not_mix(served: Served) -> None:
    served.post("/v1/documents", {"text": "x", "name": "chat"}).raise_for_status()
    served.post("/v1/documents", {"text": "x", "name": "raw", "raw": True}).raise_for_status()
    assert served.chat(document="chat").status_code == served.complete(document="raw").status_code == 200
    error(served.chat(document="raw"), 400, "document", "/v1/completions", "raw: false")
    error(served.complete(document="chat"), 400, "document", "/v1/chat/completions", "raw: true")


def test_a_document_in_use_is_not_deleted(served: Served) -> None:
    served.post("/v1/documents", {"text": "x", "name": "book"}).raise_for_status()
    served.engine.step_s = 0.02
    with served.http.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": "org/fake",
            "messages": [{"role": "user", "content": "x"}],
            "document": "book",
            "stream": True,
        },
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        told = error(served.http.delete("/v1/documents/book"), 409, "document", "read by 1")
        assert told["code"] == "document_in_use"
        assert served.http.get("/v1/documents/book").json()["users"] == 1
        assert "[DONE]" in "".join(lines)
    assert served.http.delete("/v1/documents/book").status_code == 200


def test_documents_are_created_while_others_are_listed(served: Served) -> None:
    served.engine.step_s = 0.001

    def create(start: int) -> None:
        for n in range(start, start + 10):
            served.post("/v1/documents", {"text": "x", "name": f"d{n}"}).raise_for_status()

    threads = [threading.Thread(target=create, args=(start,)) for start in (0, 10)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        assert served.http.get("/v1/documents").status_code == 200
    for thread in threads:
        thread.join()
    assert len(served.http.get("/v1/documents").json()["data"]) == 20
