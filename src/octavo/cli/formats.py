"""`octavo formats`: the KV formats."""

from __future__ import annotations

import click

from octavo.cli.output import Cell, emit, json_option, table

__all__ = ["command"]


@click.command("formats")
@click.option(
    "--head-dim",
    type=click.IntRange(16, 4096),
    default=128,
    show_default=True,
    help="Head dim that sizes and errors are given for, a multiple of 16.",
)
@json_option
def command(head_dim: int, as_json: bool) -> None:
    """List the KV formats, their size and where to use them."""
    from octavo.formats.ladder import ladder
    from octavo.formats.registry import get_format

    rungs = ladder(head_dim)
    pages = {r.name: get_format(r.name).nbytes(head_dim) for r in rungs}
    if as_json:
        formats = [{**r._asdict(), "page_bytes": pages[r.name]} for r in rungs]
        emit({"head_dim": head_dim, "formats": formats})
        return
    rows: list[list[Cell]] = [
        [r.name, r.bits_per_value, f"{r.mse:.2e}" if r.mse else "0", pages[r.name], r.use] for r in rungs
    ]
    click.echo(table(["format", "bits/value", "error", "bytes/page", "use"], rows))
    click.echo(f"\nbytes/page: 64 tokens of one KV head with head_dim {head_dim}, keys or values.")
    click.echo("error: mean squared error over signal power, of Gaussian values, as measured.")
    click.echo("plain is shown for a float32 model.")
