"""Documents and prompts from files and pipes, as text that is certainly text."""

from __future__ import annotations

import sys

from octavo.errors import InvalidRequest
from octavo.evaluation.files import as_text, read_text

__all__ = ["prompts_or_stdin", "read_text"]


def prompts_or_stdin(prompts: tuple[str, ...]) -> list[str]:
    """The prompts given, or the one piped in."""
    if not prompts:
        if sys.stdin.isatty():
            raise InvalidRequest("no prompt: give -p TEXT, or pipe one in")
        return [as_text(sys.stdin.buffer.read(), "standard input").rstrip("\n")]
    for n, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise InvalidRequest(f"prompt {n} of {len(prompts)} is empty; give -p some text")
    return list(prompts)
