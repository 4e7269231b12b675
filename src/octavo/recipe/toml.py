"""Writing TOML, and files that are replaced whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, time
from pathlib import Path

from octavo.errors import InvalidFile, InvalidRequest

__all__ = ["replace_files", "to_toml"]


def to_toml(top: Mapping[str, object], tables: Mapping[str, Mapping[str, object]]) -> str:
    """Keys of the top, then tables that have any. Raises InvalidRequest for a value that TOML cannot hold."""
    lines = _lines(top)
    for table, values in tables.items():
        if values:
            lines += ["", f"[{table}]", *_lines(values)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, object]) -> list[str]:
    return [f"{_key(name)} = {_value(name, value)}" for name, value in values.items()]


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"the key {name!r} is of type {type(name).__name__}; TOML's keys are texts")
    bare = name.replace("_", "").isalnum() and name.isascii() and not name.isdigit()
    return name if bare else _text(name)


def _value(name: str, value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))  # nan, inf and -inf are TOML's words too
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(name, one) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(_lines(value))}}}"
    raise InvalidRequest(
        f"{name} is {value!r} of type {type(value).__name__}, which TOML cannot hold; give texts, numbers, "
        "truth values, dates, or lists and tables of them"
    )


def _text(text: str) -> str:
    """JSON escapes what TOML forbids, but for U+007F. What is no Unicode (a lone surrogate, as in the name of
    a file that is not UTF-8) has no place in TOML: its escape is kept as text."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


def replace_files(files: Mapping[Path, bytes]) -> None:
    """Put bytes at their paths: everything is written before the first file that was there is replaced."""
    parts = {path: path.with_name(path.name + ".part") for path in files}
    for n, (path, part) in enumerate(parts.items()):
        try:
            part.write_bytes(files[path])
        except OSError as error:
            for written in list(parts.values())[: n + 1]:
                with suppress(OSError):  # the last may not be there, or be what is in the way
                    written.unlink()
            raise InvalidFile(f"{path} cannot be written: {error.strerror or error}") from error
    for path, part in parts.items():
        try:
            part.replace(path)
        except OSError as error:
            raise InvalidFile(f"{path} cannot be replaced: {error.strerror or error}") from error
