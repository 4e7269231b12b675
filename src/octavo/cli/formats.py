"""`octavo formats`: the KV formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from octavo.cli.output import Cell, emit, json_option, table

if TYPE_CHECKING:
    from octavo.formats.base import Format

__all__ = ["command"]


@click.command("formats")
@click.option(
    "--head-dim",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Head dim that sizes are given for.",
)
@json_option
def command(head_dim: int, as_json: bool) -> None:
    """List the KV formats, their size and where to use them."""
    from octavo.formats.registry import format_names, get_format

    formats = [get_format(name) for name in format_names()]
    if as_json:
        emit({"head_dim": head_dim, "formats": [describe(f, head_dim) for f in formats]})
        return
    rows: list[list[Cell]] = [
        [f.name, f.bits_per_value(head_dim), f.nbytes(head_dim), f.use] for f in formats
    ]
    click.echo(table(["format", "bits/value", "bytes/page", "use"], rows))
    click.echo(f"\nbytes/page: 64 tokens of one KV head with head_dim {head_dim}, keys or values.")
    click.echo("plain is shown for a float32 model.")


def describe(form: Format, head_dim: int) -> dict[str, str | int | float]:
    return {
        "name": form.name,
        "bits_per_value": form.bits_per_value(head_dim),
        "page_bytes": form.nbytes(head_dim),
        "use": form.use,
    }
