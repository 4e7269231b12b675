"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.requests import Delta
from octavo.server import fields
from octavo.server.body import read
from octavo.server.errors import ApiError, shorten
from octavo.server.fields import Inert
from octavo.server.generation import Answer, Generation, Sample
from octavo.server.logprobs import for_chat
from octavo.server.reply import Reply, respond
from octavo.server.schemas import Body, Count, GenerationBody, invalid
from octavo.server.service import service_of

__all__ = ["ChatBody", "Message", "chat_completions"]


class Part(Body):
    """A content part. Images, audio and files are refused by name."""

    inert = fields.PART
    type: Literal["text"]
    text: str


def as_parts(content: Any) -> Any:
    """Content as a list of parts, each of type text."""
    if content is None or isinstance(content, str):
        return None if content is None else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise invalid(f"content is {shorten(content)}; it must be a string or a list of text parts")
    for n, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            message = f"content[{n}] has type {shorten(kind)}; only parts of type 'text' can be read here"
            raise invalid(message, code="unsupported_parameter")
    return content


class Message(Body):
    """One message. `developer` is OpenAI's newer word for `system`, which is what templates know."""

    inert = fields.MESSAGE
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Annotated[list[Part], Field(fail_fast=True)] | None, BeforeValidator(as_parts)] = None
    name: str | None = None

    @model_validator(mode="after")
    def has_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise invalid(f"content is required for the role {self.role!r}", field="content")
        return self

    @property
    def text(self) -> str:
        """Its text parts, joined by a newline."""
        return "\n".join(part.text for part in self.content or [])

    def for_template(self) -> dict[str, str]:
        """What the chat template sees; `name` is passed on for the templates that read it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.text} | ({"name": self.name} if self.name else {})


class ChatBody(GenerationBody):
    """The body of a chat request."""

    inert: ClassVar[Mapping[str, Inert]] = fields.CHAT
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def agree(self) -> ChatBody:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise invalid("max_tokens and max_completion_tokens differ; send one of them", field="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true", field="top_logprobs")
        if not any(message.text for message in self.messages):
            raise invalid("every message is empty; a prompt needs some text", field="messages")
        return self

    def samples_wanted(self) -> list[Sample]:
        prompt = [message.for_template() for message in self.messages]
        limit = self.max_completion_tokens or self.max_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return [
            Sample(prompt, self.sampling(n, max_tokens=limit, logprobs=logprobs)) for n in range(self.samples)
        ]


class ChatReply(Reply):
    """Choices that hold a message, or in chunks what was added to one."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, body: ChatBody, generation: Generation) -> None:
        super().__init__(body, generation)
        self.logprobs = bool(body.logprobs)
        self.begun: set[int] = set()

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": for_chat(answer.logprobs) if self.logprobs else None,
            "finish_reason": answer.finish,
        }

    def deltas(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        if index not in self.begun:
            self.begun.add(index)
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
        if delta.text or (self.logprobs and delta.logprobs):
            logprobs = for_chat(delta.logprobs) if self.logprobs else None
            yield self._chunk(index, {"content": delta.text}, logprobs=logprobs)
        if delta.finish:
            yield self._chunk(index, {}, finish=delta.finish)

    def _chunk(
        self, index: int, delta: dict[str, Any], *, logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


async def chat_completions(request: Request) -> Response:
    """Answers the conversation, whole or as events."""
    service, body = service_of(request), await read(request, ChatBody)
    service.admit(body, raw=False)
    if not service.engine.tokenizer.has_chat:
        message = f"{service.model!r} has no chat template; use /v1/completions"
        raise ApiError(400, message, code="no_chat_template", param="messages")
    generation = Generation(
        service, body.samples_wanted(), per_prompt=body.samples, document=body.document, raw=False
    )
    return await respond(ChatReply(body, generation), request)
