"""POST /v1/completions: raw prompts, as text or token ids, one or many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.requests import Delta
from octavo.server import fields
from octavo.server.body import read
from octavo.server.fields import Inert
from octavo.server.generation import Answer, Generation, Sample
from octavo.server.logprobs import for_completion
from octavo.server.reply import Reply, respond
from octavo.server.schemas import Count, GenerationBody, Text, invalid, text_or_ids
from octavo.server.service import Service, service_of

__all__ = ["CompletionBody", "completions"]

DEFAULT_TOKENS = 16
"""OpenAI's default of max_tokens on this route."""

MAX_CHOICES = 1024


def as_prompts(value: Any) -> list[Text]:
    """A string, a list of strings, token ids or a list of those, as a list of prompts."""
    if isinstance(value, list) and value and all(isinstance(item, str | list) for item in value):
        return [text_or_ids(item, f"prompt[{n}]") for n, item in enumerate(value)]
    return [text_or_ids(value, "prompt")]


class CompletionBody(GenerationBody):
    """The body of a completion request."""

    inert: ClassVar[Mapping[str, Inert]] = fields.COMPLETION
    prompt: Annotated[list[Text], PlainValidator(as_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Count | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def agree(self) -> CompletionBody:
        if self.best_of not in (None, self.samples):
            message = (
                f"best_of is {self.best_of} and n {self.samples}; ask for n and choose the best yourself"
            )
            raise invalid(message, code="unsupported_parameter", field="best_of")
        if self.echo and self.logprobs is not None:
            message = "echo with logprobs is not implemented: a prompt's log-probabilities are not computed"
            raise invalid(message, code="unsupported_parameter", field="echo")
        choices = self.prompts * self.samples
        if choices > MAX_CHOICES:
            prompts = f"{self.prompts} prompts with n={self.samples}"
            message = f"{prompts} make {choices} choices; {MAX_CHOICES} fit one request"
            raise invalid(message, field="prompt")
        return self

    @property
    def prompts(self) -> int:
        return len(self.prompt)

    def samples_wanted(self) -> list[Sample]:
        limit = self.max_tokens or DEFAULT_TOKENS
        return [
            Sample(prompt, self.sampling(n, max_tokens=limit, logprobs=self.logprobs))
            for prompt in self.prompt
            for n in range(self.samples)
        ]


class CompletionReply(Reply):
    """Choices that hold text."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, body: CompletionBody, generation: Generation, echoes: list[str] | None) -> None:
        super().__init__(body, generation)
        self.logprobs = body.logprobs
        self.echoes = echoes
        self.begun: set[int] = set()

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return self._choice(index, self._echo(index) + answer.text, answer)

    def deltas(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        text = ("" if index in self.begun else self._echo(index)) + delta.text
        self.begun.add(index)
        if text or delta.finish or (self.logprobs is not None and delta.logprobs):
            yield self._choice(index, text, delta)

    def _choice(self, index: int, text: str, told: Answer | Delta) -> dict[str, Any]:
        logprobs = None
        if self.logprobs is not None:
            logprobs = for_completion(told.logprobs, self.logprobs)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": told.finish}

    def _echo(self, index: int) -> str:
        return self.echoes[index // self.generation.per_prompt] if self.echoes else ""


def echoes(body: CompletionBody, service: Service) -> list[str]:
    """Each prompt as text."""
    return [p if isinstance(p, str) else service.engine.tokenizer.decode(p) for p in body.prompt]


async def completions(request: Request) -> Response:
    """Continues every prompt, whole or as events."""
    service, body = service_of(request), await read(request, CompletionBody)
    service.admit(body, raw=True)
    for prompt in body.prompt:
        if not isinstance(prompt, str):
            service.check_tokens(prompt, "prompt")
    generation = Generation(
        service, body.samples_wanted(), per_prompt=body.samples, document=body.document, raw=True
    )
    # A long prompt of token ids takes a while to spell: not on the event loop.
    texts = await run_in_threadpool(echoes, body, service) if body.echo else None
    return await respond(CompletionReply(body, generation, texts), request)
