"""What a measurement was made with: version, commit, device."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers

from octavo.errors import InvalidFile
from octavo.evaluation.files import BOM

__all__ = ["commit", "environment", "file_sha256", "version"]


def version() -> str:
    """Octavo's version; "checkout" where it runs from files that were never installed."""
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return "checkout"


def commit() -> str | None:
    """The git commit of the checkout this runs from, "+" when files differ from it; None when installed.

    OCTAVO_COMMIT says it where the tree has no history.
    """
    if told := os.environ.get("OCTAVO_COMMIT"):
        return told
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def environment(device: torch.device | str, dtype: str) -> dict[str, Any]:
    """Version, commit, libraries and device, for a report."""
    kind = torch.device(device).type
    cpu = platform.processor() or platform.machine()
    name = torch.cuda.get_device_name(device) if kind == "cuda" else cpu
    return {
        "version": version(),
        "commit": commit(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": f"{kind}: {name}",
        "dtype": dtype,
    }


def file_sha256(path: Path) -> str:
    """The hash of a file's bytes, a byte order mark left out. Raises InvalidFile for a pipe, which whoever
    asks has emptied, or will want to read again."""
    if not path.is_file():
        raise InvalidFile(
            f"{path} is no regular file: it is read more than once, and a pipe gives its bytes only once; "
            "write them to a file"
        )
    with path.open("rb") as file:
        if file.read(len(BOM)) != BOM:
            file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
