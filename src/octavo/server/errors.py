"""Errors as OpenAI's JSON: {"error": {"message", "type", "param", "code"}}, with the right status.

Octavo's own errors map by class, the nearest base first in MAP; a client that hung up is status 499, which
only the metrics see.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from octavo.errors import (
    DocumentInUse,
    EngineStopped,
    InvalidRequest,
    NotFinite,
    OctavoError,
    Overloaded,
    PoolFull,
    PromptTooLong,
    UnknownDocument,
    UnknownName,
    UnsupportedModel,
)

__all__ = ["ApiError", "ClientGone", "as_api_error", "error_body", "error_response", "not_valid", "shorten"]

log = logging.getLogger("octavo.server")


class ApiError(Exception):
    """One error reply: HTTP status and the four members of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        type: str = "invalid_request_error",
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.type = status, message, code, type
        self.param, self.headers = param, headers or {}


class ClientGone(Exception):
    """The client hung up before its reply was complete."""


@dataclass(frozen=True)
class Kind:
    """How one class of errors is told: `retry_s` becomes the Retry-After header, in seconds."""

    status: int
    code: str
    type: str = "invalid_request_error"
    param: str | None = None
    retry_s: int | None = None


MAP: dict[type[Exception], Kind] = {
    UnknownDocument: Kind(404, "document_not_found", param="document"),
    DocumentInUse: Kind(409, "document_in_use", param="document"),
    PromptTooLong: Kind(400, "context_length_exceeded"),
    UnknownName: Kind(400, "unknown_name"),
    InvalidRequest: Kind(400, "invalid_value"),
    UnsupportedModel: Kind(400, "unsupported_model"),
    Overloaded: Kind(429, "overloaded", "rate_limit_error", retry_s=2),
    NotFinite: Kind(500, "not_finite", "server_error"),
    PoolFull: Kind(503, "pool_full", "server_error", retry_s=5),
    EngineStopped: Kind(503, "engine_stopped", "server_error", retry_s=10),
    OctavoError: Kind(500, "engine_error", "server_error"),
}


def as_api_error(error: BaseException) -> ApiError:
    """The reply `error` deserves. The unforeseen is logged with its traceback and told without details."""
    if isinstance(error, ApiError):
        return error
    kind = next((kind for cls, kind in MAP.items() if isinstance(error, cls)), None)
    if kind is None:
        log.error("unforeseen error", exc_info=error)
        message = f"the server met an unforeseen {type(error).__name__}; its log has the traceback"
        return ApiError(500, message, code="internal_error", type="server_error")
    headers = {"Retry-After": str(kind.retry_s)} if kind.retry_s else {}
    param = error.field if isinstance(error, InvalidRequest) else kind.param
    return ApiError(kind.status, str(error), code=kind.code, type=kind.type, param=param, headers=headers)


def error_body(error: BaseException) -> dict[str, Any]:
    """OpenAI's error object for `error`."""
    told = as_api_error(error)
    return {"error": {"message": told.message, "type": told.type, "param": told.param, "code": told.code}}


async def error_response(request: Request, error: Exception) -> Response:
    """Exception handler of the whole application."""
    if isinstance(error, ClientGone | ClientDisconnect):
        return Response(status_code=499)
    told = as_api_error(error)
    return JSONResponse(error_body(told), told.status, headers=told.headers)


def not_valid(error: ValidationError) -> ApiError:
    """The first of pydantic's complaints, naming the field and what was sent."""
    first = error.errors(include_url=False)[0]
    field = first.get("ctx", {}).get("field")
    place = first["loc"] if field is None else (*first["loc"], field)
    param = ".".join(map(str, place)) if place else None
    if first["type"] == "missing":
        return ApiError(400, f"{param} is required", code="missing_required_parameter", param=param)
    if field is not None or first["type"] in OWN_CODES:
        return ApiError(400, first["msg"], code=first["type"], param=param)
    got = shorten(first["input"])
    message = f"{param or 'the body'} is {got}; {first['msg'][0].lower()}{first['msg'][1:]}"
    return ApiError(400, message, code="invalid_value", param=param)


OWN_CODES = ("invalid_value", "unsupported_parameter", "unknown_parameter")
"""Error types our own validators raise; their messages are complete sentences already."""


def shorten(value: object, limit: int = 60) -> str:
    """repr of `value`, cut so that an error never repeats a whole prompt."""
    text = repr(value) if not isinstance(value, str) else repr(value[:limit])
    return text if len(text) <= limit else text[: limit - 1] + "…"
