"""Documents and prompts from files and pipes, as text that is certainly text."""

from __future__ import annotations

import sys
from pathlib import Path

from octavo.errors import InvalidFile, InvalidRequest

__all__ = ["prompts_or_stdin", "read_text"]


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file. Raises InvalidFile for a missing, unreadable, binary or empty one."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidFile(f"cannot read {path}: {error.strerror}; give a readable text file") from error
    return checked(data, str(path))


def checked(data: bytes, name: str) -> str:
    zero = data.find(b"\0")
    if zero >= 0:
        raise InvalidFile(f"{name} is binary: byte {zero:,} of {len(data):,} is NUL; give UTF-8 text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{name} is not UTF-8: byte {error.start:,} of {len(data):,} is 0x{data[error.start]:02x}; "
            f"convert it, for example with iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise InvalidFile(f"{name} is empty: {len(data):,} bytes, none of them text; give a file with text")
    return text


def prompts_or_stdin(prompts: tuple[str, ...]) -> list[str]:
    """The prompts given, or the one piped in."""
    if not prompts:
        if sys.stdin.isatty():
            raise InvalidRequest("no prompt: give -p TEXT, or pipe one in")
        return [checked(sys.stdin.buffer.read(), "standard input").rstrip("\n")]
    for n, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise InvalidRequest(f"prompt {n} of {len(prompts)} is empty; give -p some text")
    return list(prompts)
