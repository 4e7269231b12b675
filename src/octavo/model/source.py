"""What a user calls a model becomes a folder, or a hub id, that Transformers loads."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.errors import InvalidFile, UnknownName
from octavo.model.builtin import BUILTINS, builtin
from octavo.model.cache import cached, file_key
from octavo.model.gguf import convert, read_header

__all__ = ["resolve"]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve(model: str | Path) -> Path | str:
    """A folder, or a hub id as it came.

    `model` is a built-in name, a folder, a GGUF file (converted once into the cache) or `owner/name`.
    Raises UnknownName or InvalidFile.
    """
    if str(model) in BUILTINS:
        return builtin(str(model)).folder()
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked_folder(path)
    if path.is_file():
        read_header(path)
        return cached(file_key(path), lambda folder: convert(path, folder))
    if isinstance(model, str) and _HUB_ID.fullmatch(model) and not model.startswith("."):
        return model
    if isinstance(model, Path) or "/" in model or model.endswith(".gguf"):
        raise UnknownName(f"there is no file or folder {str(path)!r}; check the path, or run `octavo models`")
    builtin(model)  # raises, with a suggestion
    raise AssertionError("unreachable: built-in names were looked up first")


def _checked_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    hint = f"give the file itself: {files[0]}" if files else "give a folder that `save_pretrained` wrote"
    raise InvalidFile(f"the folder {path} has no config.json; {hint}")
