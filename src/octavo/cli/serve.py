"""`octavo serve`: the OpenAI-compatible server."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from octavo.cli.options import engine_options, make_engine
from octavo.errors import OctavoError

__all__ = ["command"]


@click.command("serve")
@click.argument("model")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all of them."
)
@click.option(
    "--port", type=int, default=8000, show_default=True, help="Port to listen on; 0 takes a free one."
)
@click.option(
    "--api-key", metavar="KEY", envvar="OCTAVO_API_KEY", show_envvar=True, help="Require this bearer token."
)
@click.option("--max-sequences", type=click.IntRange(1), help="Requests computed at once.  [default: 64]")
@click.option("--max-waiting", type=click.IntRange(1), help="Requests queued before 429.  [default: 1024]")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="Time that running requests get when the server stops.",
)
@engine_options
def command(
    model: str,
    host: str,
    port: int,
    api_key: str | None,
    max_sequences: int | None,
    max_waiting: int | None,
    grace: float,
    **options: Any,
) -> None:
    """Serve MODEL over HTTP: /v1/chat/completions, /v1/completions, /v1/documents and more.

    Stops on Ctrl-C after running requests ended, or on a second Ctrl-C at once.
    """
    try:
        from octavo.server import serve
        from octavo.server.gate import check_key
        from octavo.server.serve import bind
    except ImportError as error:
        raise OctavoError(f"the server needs {error.name}; pip install 'octavo[server]'") from error
    check_key(api_key)
    bind(host, port).close()  # a port in use is said before the model is loaded
    limits = {"max_sequences": max_sequences, "max_waiting": max_waiting}
    settings = {name: value for name, value in limits.items() if value is not None}
    with make_engine(model, options, **settings) as engine:
        from octavo import AsyncEngine

        def ready(url: str) -> None:
            click.echo(f"serving {engine.name} with {engine.recipe.pair} pages on {url}", err=True)

        with suppress(KeyboardInterrupt):  # the server stops in order and then passes the signal on
            serve(engine, AsyncEngine(engine), host, port, api_key=api_key, grace_s=grace, ready=ready)
        click.echo("stopped", err=True)
