"""GET /v1/models, /v1/models/{model} and /health: what is served, and whether it runs."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.server.service import Service, service_of

__all__ = ["health", "list_models", "show_model"]


def as_model(service: Service) -> dict[str, Any]:
    """OpenAI's model object, with the context in tokens and the cache's formats beside it."""
    return {
        "id": service.model,
        "object": "model",
        "created": service.created,
        "owned_by": "octavo",
        "context": service.engine.context,
        "cache": service.engine.recipe.pair,
        "chat": service.engine.tokenizer.has_chat,
    }


async def list_models(request: Request) -> Response:
    """The one served model."""
    return JSONResponse({"object": "list", "data": [as_model(service_of(request))]})


async def show_model(request: Request) -> Response:
    """The served model, or 404 that names it. Names of hub models contain a slash."""
    service = service_of(request)
    service.check_model(request.path_params["model"])
    return JSONResponse(as_model(service))


async def health(request: Request) -> Response:
    """200 while requests are taken; 503 once the server drains, or when the engine has stopped."""
    service = service_of(request)
    if service.stopped:
        raise service.stopped
    requests = (await run_in_threadpool(service.worker.stats)).as_dict()["requests"]
    state = "draining" if service.draining else "ok"
    body = {"status": state, "model": service.model, "requests": requests}
    return JSONResponse(body, 503 if service.draining else 200)
