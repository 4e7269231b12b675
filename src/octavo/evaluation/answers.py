"""Answers to prompts, from an engine in this process; what failed or came back empty says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol

from octavo.engine.engine import Engine
from octavo.engine.requests import Delta, Prompt, Sampling
from octavo.errors import OctavoError

__all__ = ["Answer", "Answerer", "EngineAnswerer", "Question"]

Status = Literal["ok", "empty", "error", "timeout"]


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, or as chat messages, and the longest answer in tokens."""

    max_tokens: int
    tokens: tuple[int, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Answer:
    """`error` tells of status error and timeout; only an answer that is ok can be scored."""

    text: str
    status: Status
    error: str | None = None

    @classmethod
    def of(cls, text: str) -> Answer:
        """What came back: ok, or empty when there is nothing but white space."""
        return cls(text, "ok" if text.strip() else "empty")

    @classmethod
    def failed(cls, error: str, status: Status = "error") -> Answer:
        return cls("", status, error)


class Answerer(Protocol):
    """Whatever answers questions: an engine, or a server."""

    def answers(self, questions: Iterator[Question]) -> Iterator[Answer]:
        """One answer per question, in their order; greedy."""
        ...


class EngineAnswerer:
    """Runs `batch` questions at a time through an engine."""

    def __init__(self, engine: Engine, *, batch: int = 8) -> None:
        self._engine, self._batch = engine, batch

    def answers(self, questions: Iterator[Question]) -> Iterator[Answer]:
        while group := list(islice(questions, self._batch)):
            started = [self._start(question) for question in group]
            for stream in started:
                yield stream if isinstance(stream, Answer) else _read(stream)

    def _start(self, question: Question) -> Iterator[Delta] | Answer:
        prompt: Prompt = list(question.tokens) if question.tokens else list(question.messages)
        try:
            return iter(self._engine.stream(prompt, Sampling(max_tokens=question.max_tokens)))
        except OctavoError as error:
            return Answer.failed(str(error))


def _read(stream: Iterator[Delta]) -> Answer:
    parts: list[str] = []
    try:
        for delta in stream:
            if delta.finish == "error":
                return Answer.failed(str(delta.error))
            parts.append(delta.text)
    except OctavoError as error:
        return Answer.failed(str(error))
    return Answer.of("".join(parts))
