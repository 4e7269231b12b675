"""The outermost layer: every request gets an id, shows its key, is counted, and ends in a reply."""

from __future__ import annotations

import hmac
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import EngineStopped, InvalidRequest
from octavo.server.errors import ApiError, error_response
from octavo.server.race import STOPPED
from octavo.server.service import Service

__all__ = ["Gate", "check_key"]

OPEN = ("/health",)
"""Paths that need no key."""


def check_key(key: str | None) -> None:
    """InvalidRequest for a key that clients cannot send; the message does not repeat it.

    A header is bytes, and clients disagree on characters beyond ASCII: httpx, and with it the openai
    package, refuses them, http.client writes Latin-1, curl what the terminal gives it. Spaces around a
    header's value are lost.
    """
    if key is None:
        return
    if not key:
        raise InvalidRequest("the API key is empty; choose one, or serve without")
    odd = next((n for n, char in enumerate(key, 1) if not (char.isascii() and char.isprintable())), None)
    if odd is not None:
        raise InvalidRequest(
            f"character {odd} of {len(key)} of the API key is not printable ASCII, which is all that every "
            "HTTP client can send; choose letters, digits and signs such as - . _ ~"
        )
    if key != key.strip():
        raise InvalidRequest("the API key begins or ends with a space, which HTTP drops; leave it out")


class Gate:
    """ASGI middleware around the routes of one service."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = Visit(send)
        try:
            self._admit(scope)
            await self.app(scope, receive, visit.send)
        except Exception as error:
            if visit.status is not None:
                raise
            response = await error_response(Request(scope, receive), error)
            await response(scope, receive, visit.send)
        finally:
            endpoint = getattr(scope.get("endpoint"), "__name__", "none")
            self.service.metrics.answered(endpoint, visit.status or 500, visit.seconds)

    def _admit(self, scope: Scope) -> None:
        """Refuses a request without the key, and new work while the server stops."""
        if scope["path"] not in OPEN and not self._has_key(scope):
            message = "the API key is missing or wrong; send 'Authorization: Bearer KEY'"
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ApiError(
                401, message, code="invalid_api_key", type="authentication_error", headers=challenge
            )
        if self.service.draining and scope["method"] == "POST":
            raise EngineStopped(STOPPED)

    def _has_key(self, scope: Scope) -> bool:
        if self.service.api_key is None:
            return True
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        same = hmac.compare_digest(key.strip().encode(), self.service.api_key.encode())
        return same and scheme.lower() == "bearer"


class Visit:
    """One request on its way out: adds its id to the reply's headers and notes the status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, None
        self.id, self.started = f"req_{uuid.uuid4().hex}", time.perf_counter()

    status: int | None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.id
        await self._send(message)
