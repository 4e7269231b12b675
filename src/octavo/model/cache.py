"""Converted models on disk: made once, whole or not at all, whoever asks at the same time."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from octavo.errors import InvalidRequest

__all__ = ["cache_folder", "cached", "file_key", "is_cached"]

log = logging.getLogger(__name__)

VERSION = "1"
"""Of the conversion: folders made by another one are made anew."""

_MARK = "octavo-conversion"
_SAMPLE = 1 << 20


def cache_folder() -> Path:
    """Where converted models are kept: $OCTAVO_CACHE, or ~/.cache/octavo/models."""
    chosen = os.environ.get("OCTAVO_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "octavo" / "models"


def is_cached(key: str) -> bool:
    """Whether the model of `key` is there, made by this version of the conversion."""
    mark = cache_folder() / key / _MARK
    return mark.is_file() and mark.read_text().strip() == VERSION


def cached(key: str, make: Callable[[Path], None]) -> Path:
    """The folder of `key`, after `make(folder)` has filled it if it was not there.

    The folder appears by one rename, so that readers find it whole; a second process waits for the first.
    """
    target = cache_folder() / key
    if is_cached(key):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target):
            if not is_cached(key):
                _build(target, make)
    except OSError as error:
        raise InvalidRequest(
            f"cannot convert a model into {target.parent}: {error}; set OCTAVO_CACHE to a folder with space"
        ) from error
    return target


def _lock(target: Path) -> FileLock:
    lock = FileLock(f"{target}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another process that is making %s", target)
        lock.acquire()
    return lock


def _build(target: Path, make: Callable[[Path], None]) -> None:
    for stale in target.parent.glob(f"{target.name}.partial-*"):  # ours alone: we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        partial.chmod(0o755)
        make(partial)
        (partial / _MARK).write_text(VERSION + "\n")
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def file_key(path: Path) -> str:
    """A cache key for a file: its stem and a hash of its size, its beginning and its end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_SAMPLE)
        file.seek(max(0, size - _SAMPLE))
        digest = hashlib.sha256(str(size).encode() + head + file.read()).hexdigest()
    return f"{path.stem}-{digest[:12]}"
