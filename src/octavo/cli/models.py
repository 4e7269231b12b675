"""`octavo models`: the models that come as packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from octavo.cli.output import emit, json_option, table

if TYPE_CHECKING:
    from octavo.model.builtin import Builtin

__all__ = ["command"]


@click.command("models")
@json_option
def command(as_json: bool) -> None:
    """List the built-in models and whether they are installed."""
    from octavo.model.builtin import BUILTINS

    rows = [
        {
            "name": m.name,
            "installed": m.installed,
            "ready": m.converted is not None,
            "parameters": m.parameters,
            "context": m.context,
            "licence": m.licence,
            "package": m.package,
            "install": m.install_command,
        }
        for m in BUILTINS.values()
    ]
    if as_json:
        emit({"models": rows})
        return
    header = ["model", "state", "parameters", "context", "licence", "install with"]
    click.echo(
        table(
            header,
            [
                [m.name, state(m), m.parameters, m.context, m.licence, m.install_command]
                for m in BUILTINS.values()
            ],
        )
    )
    click.echo("\nready: converted; installed: will be converted on first use, which takes about a minute.")


def state(model: Builtin) -> str:
    """What it takes to run `model`."""
    if model.converted is not None:
        return "ready"
    return "installed" if model.installed else "not installed"
