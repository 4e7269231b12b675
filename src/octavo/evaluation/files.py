"""Files of evaluations: users' as text, which is UTF-8 with a byte order mark or without, and certainly text;
and a run's own, which may meet a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from octavo.errors import InvalidFile

__all__ = ["BOM", "ODD", "as_text", "read_text", "write_text", "writing"]

BOM = b"\xef\xbb\xbf"
"""UTF-8's byte order mark: it says how a file is written and is no part of its text."""

ODD = "backslashreplace"
"""How half a surrogate pair is written, which a server's JSON or a file's name may hold: its escape is JSON's
too."""


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file. Raises InvalidFile for a missing, unreadable, binary or empty one."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidFile(f"cannot read {path}: {error.strerror}; give a readable text file") from error
    return as_text(data, str(path))


def as_text(data: bytes, name: str) -> str:
    """Bytes as text, without a byte order mark. Raises InvalidFile for binary or empty ones."""
    zero = data.find(b"\0")
    if zero >= 0:
        raise InvalidFile(f"{name} is binary: byte {zero:,} of {len(data):,} is NUL; give UTF-8 text")
    body = data.removeprefix(BOM)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{name} is not UTF-8: byte {error.start + len(data) - len(body):,} of {len(data):,} is "
            f"0x{body[error.start]:02x}; convert it, for example with iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise InvalidFile(f"{name} is empty: {len(data):,} bytes, none of them text; give a file with text")
    return text


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """InvalidFile that names `path` and the reason for what cannot be written inside, as on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidFile(
            f"{path} cannot be written: {reason}; see to that and run the same command again: what is on "
            "disk is not measured anew"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Put a text at `path`, all of it or nothing: what was there stays until then. Raises InvalidFile."""
    part = path.with_name(path.name + ".part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", errors=ODD)
        part.replace(path)
