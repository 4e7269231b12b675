"""Users' files as text: UTF-8 with a byte order mark or without, and certainly text."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import InvalidFile

__all__ = ["BOM", "as_text", "read_text"]

BOM = b"\xef\xbb\xbf"
"""UTF-8's byte order mark: it says how a file is written and is no part of its text."""


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
