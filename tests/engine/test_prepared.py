"""What `prepare` made is queued once, whatever became of it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidRequest, Overloaded, UnknownDocument
from tests.engine.helpers import greedy, live, random_tokens, tiny_engine


def test_a_request_is_queued_once() -> None:
    with tiny_engine() as engine:
        request = engine.prepare([1, 2, 3], greedy(3))
        engine.start(request)
        for _ in range(2):  # while it waits, and when it has finished
            with pytest.raises(InvalidRequest, match=f"request {request.id} was queued before"):
                engine.start(request)
            while not engine.idle:
                engine.step()
        assert request.usage().completion_tokens == 3 and live(engine) == 0


def test_a_request_that_was_refused_may_come_again() -> None:
    with tiny_engine(max_waiting=1) as engine:
        engine.submit([1, 2, 3], greedy(1))
        request = engine.prepare([4, 5], greedy(2))
        with pytest.raises(Overloaded):
            engine.start(request)
        engine.step()
        engine.start(request)
        while not engine.idle:
            engine.step()
        assert request.usage().completion_tokens == 2


def test_a_document_is_queued_once() -> None:
    """Its pages are others' once it is released."""
    with tiny_engine() as engine:
        document = engine.begin(engine.prepare_document(random_tokens(100)))
        while not document.ready:
            engine.step()
        with pytest.raises(InvalidRequest, match="document 'document-1' was queued before"):
            engine.begin(document)
        document.release()
        with pytest.raises(InvalidRequest, match="document 'document-1' was queued before"):
            engine.begin(document)
        assert engine.idle and live(engine) == 0 and not engine.documents


def test_what_another_engine_prepared_is_refused() -> None:
    """Of the same model too: its pages lie in another pool."""
    with tiny_engine() as engine, tiny_engine() as other:
        with other.document(random_tokens(100), name="d"):
            told = "were prepared by another engine; start them on that one"
            requests = [other.prepare([1, 2, 3], greedy(2)), other.prepare([4], greedy(2), document="d")]
            for request in requests:
                with pytest.raises(InvalidRequest, match=told):
                    engine.start(request)
            with pytest.raises(InvalidRequest, match=f"101 tokens {told}"):
                engine.begin(other.prepare_document(random_tokens(101)))
            assert engine.idle and not engine.documents
            for request in requests:  # where it belongs it still starts
                other.start(request)
            while not other.idle:
                other.step()
        assert [request.usage().completion_tokens for request in requests] == [2, 2]


@pytest.mark.parametrize("wrong", [3, b"d", ["d"]])
def test_documents_and_names_of_a_wrong_type(wrong: Any) -> None:
    with tiny_engine() as engine:
        with pytest.raises(InvalidRequest, match=r"document is a (int|bytes|list); it must be"):
            engine.submit("x", document=wrong)
        with pytest.raises(InvalidRequest, match=r"name is a (int|bytes|list); it must be"):
            engine.begin_document("x", name=wrong)
        assert engine.idle and live(engine) == 0


def test_a_document_is_not_taken_for_another_of_its_name() -> None:
    with tiny_engine() as engine:
        with engine.document(random_tokens(70), name="report") as gone:
            pass
        with engine.document(random_tokens(70), name="report"):
            with pytest.raises(UnknownDocument, match="'report' is not the one this engine holds"):
                engine.prepare([1], greedy(1), document=gone)
            engine.prepare([1], greedy(1), document="report")
