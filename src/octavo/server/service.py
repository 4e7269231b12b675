"""What every route shares: the engine, its name here, the key, the metrics and the order to stop."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from starlette.requests import Request

from octavo.errors import EngineStopped, unknown
from octavo.server.errors import ApiError
from octavo.server.metrics import Metrics
from octavo.server.ports import AsyncEngine, Document, Engine
from octavo.server.schemas import GenerationBody

__all__ = ["Service", "service_of"]


@dataclass
class Service:
    """One served engine.

    draining  no new work is taken
    halt      work that still runs must end now
    stopped   why the engine has ended for good, once a request heard so
    """

    engine: Engine
    worker: AsyncEngine
    created: int
    metrics: Metrics
    api_key: str | None = None
    draining: bool = False
    stopped: EngineStopped | None = None
    halt: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model(self) -> str:
        return self.engine.name

    @cached_property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: the same model and cache formats give the same one."""
        facts = f"{self.engine.name} {self.engine.recipe.pair}"
        return "fp_" + hashlib.sha256(facts.encode()).hexdigest()[:10]

    def note(self, error: Exception) -> None:
        """Remembers the end of the engine, which /health then tells."""
        if isinstance(error, EngineStopped):
            self.stopped = error

    def check_model(self, name: str) -> None:
        """404 that names the served model, when `name` is another one."""
        if name != self.model:
            message = f"the model {name[:100]!r} is not served here; this server serves {self.model!r}"
            raise ApiError(404, message, code="model_not_found", param="model")

    def check_queue(self, body: GenerationBody) -> None:
        """400 when the queue never has room for all samples, which enter it together."""
        wanted, most = body.prompts * body.samples, self.engine.max_waiting
        if wanted > most:
            asked = f"{body.prompts} prompts with n={body.samples}" if body.prompts > 1 else f"n is {wanted}"
            message = (
                f"{asked}: {wanted} samples enter the queue together, which takes {most}; ask for {most} or "
                "fewer at a time, or start the server with a larger --max-waiting"
            )
            param = "n" if body.samples > 1 else "prompt"
            raise ApiError(400, message, code="invalid_value", param=param)

    def find_document(self, name: str) -> Document:
        """The document, or 404 with the nearest name."""
        held = dict(self.engine.documents)
        if name not in held:
            shown = name[:200]
            message = (
                str(unknown("document", shown, held)) if held else f"no document {shown!r}; none is held"
            )
            raise ApiError(404, message, code="document_not_found", param="document")
        return held[name]

    def admit(self, body: GenerationBody, *, raw: bool) -> None:
        """Checks what a schema cannot know: model, queue, vocabulary, the document and its kind."""
        self.check_model(body.model)
        self.check_queue(body)
        self.check_tokens(map(int, body.logit_bias or ()), "logit_bias")
        self.check_tokens(body.stop_token_ids or (), "stop_token_ids")
        if body.document is None or self.is_raw(self.find_document(body.document)) == raw:
            return
        route = "/v1/completions" if not raw else "/v1/chat/completions"
        kind = "raw text" if not raw else "the start of a chat"
        want = f"read it through {route}, or create it with raw: {str(raw).lower()}"
        message = f"document {body.document!r} is {kind}; {want}"
        raise ApiError(400, message, code="document_kind", param="document")

    def is_raw(self, document: Document) -> bool:
        """Whether raw prompts follow it. Without a chat template every document is raw."""
        return document.raw or not self.engine.tokenizer.has_chat

    def check_tokens(self, tokens: Iterable[int], param: str) -> None:
        """400 when a token id is outside the model's vocabulary."""
        size = self.engine.tokenizer.vocab_size
        outside = next((token for token in tokens if token >= size), None)
        if outside is not None:
            message = f"{param} has the token id {outside}; this model's ids end at {size - 1}"
            raise ApiError(400, message, code="invalid_value", param=param)


def service_of(request: Request) -> Service:
    """The service of the application `request` came to."""
    service: Service = request.app.state.service
    return service
