"""A request's body becomes a validated schema, or an error that says where it went wrong."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from octavo.server.errors import ApiError, not_valid

__all__ = ["MAX_BODY_BYTES", "read"]

MAX_BODY_BYTES = 64 << 20
"""A million token ids written in decimal are about 8 MB; this leaves room and still bounds memory."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
Schema = TypeVar("Schema", bound=BaseModel)


async def read(request: Request, schema: type[Schema]) -> Schema:
    """The body as `schema`; 415, 413 or 400 when it is not JSON, too long, malformed or invalid."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"Content-Type is {kind or 'missing'}; send the body as application/json"
        raise ApiError(415, message, code="unsupported_media_type")
    data = parse(await collect(request))
    if not isinstance(data, dict):
        raise ApiError(400, f"the body is a JSON {type(data).__name__}; send an object", code="invalid_json")
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise not_valid(error) from None


async def collect(request: Request) -> bytes:
    """The whole body, given up as soon as it is known to be too long."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        too_long(int(declared))
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            too_long(len(body))
    return bytes(body)


def too_long(nbytes: int) -> NoReturn:
    message = f"the body has {nbytes} bytes or more, {MAX_BODY_BYTES} are allowed; send a shorter prompt"
    raise ApiError(413, message, code="body_too_long", headers={"Connection": "close"})


def parse(body: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN or Infinity, no lone surrogates, bounded depth."""
    try:
        data = json.loads(body, parse_constant=no_constant)
        if SURROGATE.search(body):
            json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ApiError(400, f"the body is not JSON: {error.msg} at {where}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body's JSON is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    return data


def no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
