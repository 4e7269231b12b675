"""What commands print: tables, one JSON document as the last line of stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import click

from octavo.errors import InvalidFile

__all__ = ["Cell", "Status", "check_folder", "count", "emit", "json_option", "shown", "size", "table"]

Cell = str | int | float | None
Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """--json: the last line of stdout is one JSON document, and nothing else is on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(
        command
    )


def emit(document: object) -> None:
    """Print `document` as one line of JSON."""
    click.echo(shown(json.dumps(document, ensure_ascii=False, allow_nan=False)))


def check_folder(folder: Path, option: str) -> None:
    """Raise InvalidFile, before any work, unless files can be written in `folder`, which need not exist."""
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InvalidFile(
            f"{folder} cannot be written: {error.strerror or error}; give another {option}"
        ) from error


def shown(text: str) -> str:
    """What can be printed: in the name of a file that is not UTF-8, escapes stand for its bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Aligned columns: numbers to the right, text to the left."""
    cells = [[text(c) for c in row] for row in rows]
    values = list(zip(*cells, strict=True)) if cells else [()] * len(header)
    widths = [max(map(len, (name, *column))) for name, column in zip(header, values, strict=True)]
    right = [bool(column) and all(is_number(c) for c in column) for column in values]

    def line(row: Sequence[str]) -> str:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, cells)])


def text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def is_number(cell: str) -> bool:
    return cell == "-" or cell[:1].isdigit()


def size(nbytes: float) -> str:
    """Bytes for people, in powers of 1024: 512 B, 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def count(n: int, what: str) -> str:
    """ "1 token", "2,000 tokens"."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")


class Status:
    """One line on stderr that says what is going on: rewritten on a terminal, else every 5 seconds."""

    def __init__(self, stream: Any = None, *, every: float = 0.1) -> None:
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.every = every if self.terminal else max(every, 5.0)
        self.shown = 0.0
        self.width = 0

    def show(self, message: str) -> None:
        """Replace the line by `message`, at most every `every` seconds."""
        now = time.monotonic()
        if now - self.shown >= self.every:
            self.shown = now
            self._write(message)

    def done(self, message: str) -> None:
        """Leave `message` as the line's last word."""
        self._write(message)
        if self.terminal:
            self.stream.write("\n")
        self.width, self.shown = 0, 0.0
        self.stream.flush()

    def clear(self) -> None:
        """Wipe the line before something else is printed."""
        if self.terminal and self.width:
            self.stream.write("\r" + " " * self.width + "\r")
            self.stream.flush()
        self.width = 0

    def _write(self, message: str) -> None:
        if self.terminal:
            self.stream.write("\r" + message.ljust(self.width))
            self.width = len(message)
        else:
            self.stream.write(message + "\n")
        self.stream.flush()
