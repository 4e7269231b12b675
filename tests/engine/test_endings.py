"""How things end that end in the middle: interrupted steps, and documents left in trouble."""

from __future__ import annotations

import pytest

from octavo import Engine, Sampling
from octavo.errors import EngineStopped
from tests.tiny import tiny_loaded


def make() -> Engine:
    return Engine(tiny_loaded("llama"), memory="32MB")


def test_an_interrupt_inside_a_step_ends_the_engine_and_tells_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make()
    request = engine.submit("hello", Sampling(max_tokens=4))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._core.runner, "logits", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    (delta,) = engine.unread()
    assert delta.request == request and isinstance(delta.error, EngineStopped)
    with pytest.raises(EngineStopped, match="inside a step"):
        engine.submit("again")


def test_a_document_released_inside_its_block_is_not_released_twice() -> None:
    engine = make()
    with engine.document("a harbour", raw=True) as document:
        document.release()
    assert document.released and not engine.documents


def test_an_error_inside_a_document_block_is_not_hidden_by_its_readers() -> None:
    engine = make()
    with pytest.raises(ValueError, match="mine"), engine.document("a harbour", raw=True) as document:
        engine.submit("how deep?", Sampling(max_tokens=4), document=document, raw=True)
        raise ValueError("mine")
    assert not document.released and document.users == 1


def test_an_interrupt_while_a_document_is_made_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that was interrupted has dropped the document already."""
    engine = make()

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._core, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.document("abc" * 50)
