"""What options of evaluations take: lists of numbers, and files that are read before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from octavo.evaluation.files import read_text

__all__ = ["FILE", "NUMBERS", "TEXT", "each_once"]


class Numbers(click.ParamType[Any]):
    """Whole numbers with commas between, each of them once."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers such as 1024,2048", param, ctx)
        if min(numbers) < 1:
            self.fail(f"{value!r} has a number below 1", param, ctx)
        if len(set(numbers)) < len(numbers):
            self.fail(f"{value!r} has a number twice", param, ctx)
        return numbers


class TextFile(click.Path):
    """A file that is certainly text. Raises InvalidFile for another one. A pipe can be read only once:
    it is looked at when it is used."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if path.is_file():
            read_text(path)
        return path


NUMBERS = Numbers()
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
TEXT = TextFile(exists=True, dir_okay=False, path_type=Path)


def each_once(option: str, names: Sequence[str]) -> None:
    """Raise UsageError for a name that is there twice: it would be measured twice and shown as two."""
    for n, name in enumerate(names):
        if name in names[:n]:
            raise click.UsageError(f"{option} has {name} twice; name each once")
