"""/v1/documents: texts that are prefilled once, pinned under a name, and read by many requests."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.errors import OctavoError
from octavo.server.body import read
from octavo.server.ports import Document
from octavo.server.race import race
from octavo.server.schemas import DocumentBody
from octavo.server.service import service_of

__all__ = ["create_document", "delete_document", "list_documents", "show_document"]


def as_object(document: Document) -> dict[str, Any]:
    """`tokens` it has, `pages` of one layer group and `bytes` of all it pins; `users` read it now."""
    return {
        "id": document.name,
        "object": "document",
        "created": int(document.created),
        "raw": document.raw,
        "tokens": document.tokens,
        "pages": document.pages,
        "bytes": document.bytes,
        "users": document.users,
    }


async def create_document(request: Request) -> Response:
    """Replies 201 when the whole text is in pages. A client that hangs up before leaves no document."""
    service, body = service_of(request), await read(request, DocumentBody)
    if not isinstance(body.text, str):
        service.check_tokens(body.text, "text")
    work = service.worker.document(body.text, name=body.name, raw=bool(body.raw))
    try:
        document = await race(work, request)
    except OctavoError as error:
        service.note(error)
        raise
    return JSONResponse(as_object(document), 201, headers={"Location": f"/v1/documents/{document.name}"})


async def list_documents(request: Request) -> Response:
    """All documents, the oldest first."""
    held = sorted(service_of(request).engine.documents.values(), key=lambda document: document.created)
    return JSONResponse({"object": "list", "data": [as_object(document) for document in held]})


async def show_document(request: Request) -> Response:
    """One document, or 404 with the nearest name."""
    service, name = service_of(request), request.path_params["name"]
    return JSONResponse(as_object(service.find_document(name)))


async def delete_document(request: Request) -> Response:
    """Frees the document's pages; 409 while a sequence reads it."""
    service, name = service_of(request), request.path_params["name"]
    service.find_document(name)
    await service.worker.release(name)
    return JSONResponse({"id": name, "object": "document", "deleted": True})
