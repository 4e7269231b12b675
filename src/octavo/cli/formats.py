"""`octavo formats`: the KV formats."""

from __future__ import annotations

import click

from octavo.cli.output import emit, json_option, table

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
    rows = [
        {"name": f.name, "bits": f.bits_per_value(head_dim), "page_bytes": f.nbytes(head_dim), "use": f.use}
        for f in formats
    ]
    if as_json:
        emit({"head_dim": head_dim, "formats": rows})
        return
    click.echo(table(["format", "bits/value", "bytes/page", "use"], [[*row.values()] for row in rows]))
    click.echo(f"\nbytes/page: 64 tokens of one KV head with head_dim {head_dim}, keys or values.")
