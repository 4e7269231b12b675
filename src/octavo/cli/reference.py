"""Writes docs/cli.md from the commands' own help: `python -m octavo.cli.reference docs/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from octavo.cli.app import octavo

__all__ = ["reference"]

WIDTH = 100
INTRO = """# The command line

Made from `octavo --help` by `make docs`; a test checks that it is up to date.

Exit status: 0 done, 1 the work failed, 2 the input is wrong, 130 interrupted. With `--json` the last line of
standard output is one JSON document; progress goes to standard error.
"""


def reference() -> str:
    """The whole document."""
    sections = [f"## {name}\n\n```text\n{text}\n```\n" for name, text in pages(octavo, "octavo", None)]
    return INTRO + "\n" + "\n".join(sections)


def pages(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """(command, its help) for `command` and all below it."""
    ctx = command.context_class(
        command, info_name=name, parent=parent, terminal_width=WIDTH, **command.context_settings
    )
    yield ctx.command_path, command.get_help(ctx).strip()
    if isinstance(command, click.Group):
        for verb in command.list_commands(ctx):
            below = command.get_command(ctx, verb)
            assert below is not None
            yield from pages(below, verb, ctx)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
