"""The application: which path goes to which function."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import get_close_matches

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.server.chat import chat_completions
from octavo.server.completions import completions
from octavo.server.documents import create_document, delete_document, list_documents, show_document
from octavo.server.errors import ApiError, error_response
from octavo.server.gate import Gate, check_key
from octavo.server.metrics import Metrics, metrics
from octavo.server.models import health, list_models, show_model
from octavo.server.ports import AsyncEngine, Engine
from octavo.server.service import Service

__all__ = ["create_app"]

ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", list_models),
    Route("/v1/models/{model:path}", show_model),
    Route("/v1/documents", create_document, methods=["POST"]),
    Route("/v1/documents", list_documents),
    Route("/v1/documents/{name}", show_document),
    Route("/v1/documents/{name}", delete_document, methods=["DELETE"]),
    Route("/health", health),
    Route("/metrics", metrics),
]


def create_app(engine: Engine, worker: AsyncEngine, *, api_key: str | None = None) -> Starlette:
    """An ASGI application that serves `engine` through `worker`, which it closes when the server stops.

    With `api_key` every path but /health wants "Authorization: Bearer KEY"; InvalidRequest for a key that
    clients cannot send.
    """
    check_key(api_key)
    service = Service(engine, worker, int(time.time()), Metrics(worker), api_key)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await worker.close()

    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(Gate, service=service)],
        exception_handlers={HTTPException: no_route},
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def no_route(request: Request, error: Exception) -> Response:
    """404 with the nearest path, or 405 with the allowed methods."""
    assert isinstance(error, HTTPException)
    path, allowed = request.url.path[:200], dict(error.headers or {})
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {path}; use {allowed.get('Allow')}"
        return await error_response(
            request, ApiError(405, message, code="method_not_allowed", headers=allowed)
        )
    paths = sorted({route.path for route in ROUTES})
    near = get_close_matches(path, paths, n=1)
    hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(paths)
    return await error_response(request, ApiError(404, f"there is no {path}; {hint}", code="unknown_path"))
