"""Answers from an OpenAI-compatible server, so that other engines are measured with the same prompts.

Standard library only: a measurement should not depend on a client's retry rules.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from octavo.errors import InvalidRequest
from octavo.evaluation.answers import Answer, Question
from octavo.evaluation.protocols import TextTokenizer

__all__ = ["Send", "UrlAnswerer"]

Send = Literal["tokens", "text"]
"""How prompts travel to /completions: as token ids (exact), or as text for servers that take no ids."""

_BUSY = (429, 503)
_TRIES = 4


@dataclass(frozen=True)
class UrlAnswerer:
    """A server at `url` (ending in /v1), asked for `model`.

    timeout      seconds for one answer; one that takes longer is a time-out, never a wrong answer
    concurrent   requests under way at once
    tokenizer    needed to send prompts as text
    """

    url: str
    model: str
    timeout: float = 600.0
    concurrent: int = 4
    send: Send = "tokens"
    tokenizer: TextTokenizer | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise InvalidRequest(f"url is {self.url!r}; it must start with http:// or https://")
        if self.send == "text" and self.tokenizer is None:
            raise InvalidRequest("prompts are to be sent as text; that needs the model's tokenizer")

    def answers(self, questions: Iterator[Question]) -> Iterator[Answer]:
        """One answer per question, in their order; at most `concurrent` are under way."""
        waiting: deque[Future[Answer]] = deque()
        with ThreadPoolExecutor(self.concurrent) as pool:
            for question in questions:
                waiting.append(pool.submit(self.answer, question))
                if len(waiting) >= self.concurrent:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def answer(self, question: Question) -> Answer:
        """Ask once; a busy server is asked again after a while."""
        for attempt in range(_TRIES):
            try:
                return Answer.of(self._ask(question))
            except HTTPError as error:
                if error.code not in _BUSY or attempt == _TRIES - 1:
                    return Answer.failed(f"HTTP {error.code}: {_body(error)}")
                time.sleep(min(30.0, _retry_after(error, 2.0**attempt)))
            except TimeoutError:
                return Answer.failed(f"no answer within {self.timeout:g} s", "timeout")
            except URLError as error:
                late = isinstance(error.reason, TimeoutError)
                return Answer.failed(f"{self.url}: {error.reason}", "timeout" if late else "error")
            except (HTTPException, OSError, ValueError, LookupError, TypeError) as error:
                return Answer.failed(f"{type(error).__name__}: {error}")
        raise AssertionError("unreachable")

    def _ask(self, question: Question) -> str:
        common = {"model": self.model, "max_tokens": question.max_tokens, "temperature": 0}
        if question.messages:
            messages = [dict(message) for message in question.messages]
            reply = self._post("chat/completions", {**common, "messages": messages})
            return str(reply["choices"][0]["message"]["content"] or "")
        reply = self._post("completions", {**common, "prompt": self._prompt(question)})
        return str(reply["choices"][0]["text"])

    def _prompt(self, question: Question) -> str | list[int]:
        if self.send == "tokens":
            return list(question.tokens)
        assert self.tokenizer is not None
        return self.tokenizer.decode(question.tokens)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = Request(f"{self.url.rstrip('/')}/{path}", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=self.timeout) as reply:
            return json.load(reply)


def _retry_after(error: HTTPError, otherwise: float) -> float:
    try:
        return float(error.headers.get("Retry-After", otherwise))
    except ValueError:
        return otherwise


def _body(error: HTTPError) -> str:
    return error.read(500).decode("utf-8", "replace").strip() or str(error.reason)
