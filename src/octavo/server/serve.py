"""Bind, say so, serve, and stop within a bound."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from octavo.errors import InvalidRequest, OctavoError
from octavo.server.app import create_app
from octavo.server.ports import AsyncEngine, Engine
from octavo.server.service import Service

__all__ = ["Server", "bind", "serve"]

LAST_WORDS_S = 5
"""Seconds after the grace time for the last error replies to leave."""


def serve(
    engine: Engine,
    worker: AsyncEngine,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    api_key: str | None = None,
    grace_s: float = 30,
    ready: Callable[[str], None] = print,
) -> None:
    """Serves until SIGINT or SIGTERM. `ready` gets the URL once connections are accepted; port 0 picks one.

    After the signal no work is taken; what runs has `grace_s` seconds to finish and then gets an error.
    Raises OctavoError when the address cannot be bound.
    """
    listener = bind(host, port)
    with listener:
        app = create_app(engine, worker, api_key=api_key)
        Server(app, grace_s=grace_s, ready=lambda: ready(url(host, listener))).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; OctavoError says why not, and what to try."""
    if not 0 <= port < 65536:
        raise InvalidRequest(f"port is {port}; it must be between 0 (any free one) and 65535")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OctavoError(f"host {host!r} has no address ({error.strerror}); try 127.0.0.1") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise OctavoError(f"cannot listen on {host} port {port}: {why(error)}") from None
    return listener


def why(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another program does; stop it, or choose another port (0 picks a free one)"
        case errno.EACCES:
            return "ports below 1024 need privileges; choose a higher one"
        case errno.EADDRNOTAVAIL:
            return "this machine does not have that address; try 127.0.0.1, or 0.0.0.0 for all"
    return str(error.strerror)


def url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, with a bound on stopping in which every client still hears how its request ended."""

    def __init__(self, app: Starlette, *, grace_s: float, ready: Callable[[], None]) -> None:
        bound = int(grace_s) + LAST_WORDS_S
        config = uvicorn.Config(app, timeout_graceful_shutdown=bound, log_level="warning", ws="none")
        super().__init__(config)
        self.service: Service = app.state.service
        self.grace_s, self.ready = grace_s, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What a second SIGINT cuts off is no fault, but uvicorn would log it as one."""
        super().handle_exit(sig, frame)
        if self.force_exit:
            logging.getLogger("uvicorn.error").disabled = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain for `grace_s` seconds, then end what runs with an error; uvicorn waits for the replies."""
        self.service.draining = True
        end = asyncio.get_running_loop().call_later(self.grace_s, self.service.halt.set)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()
