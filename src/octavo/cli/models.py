"""`octavo models`: the models that come as packages."""

from __future__ import annotations

import click

from octavo.cli.output import emit, json_option, table

__all__ = ["command"]


@click.command("models")
@json_option
def command(as_json: bool) -> None:
    """List the built-in models and whether they are installed."""
    from octavo.model.builtin import builtin_models

    rows = [model.as_dict() for model in builtin_models()]
    if as_json:
        emit({"models": rows})
        return
    click.echo(table(["model", "installed", "package", "about"], [[*row.values()] for row in rows]))
