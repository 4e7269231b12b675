"""A base file: the reference's final hidden states, from which its log-probabilities are made again.

Safetensors, written window by window so that a long text needs no memory and an interrupted run goes on:

    hidden   [windows, ctx, hidden]   in the dtype they came in
    nll      [windows, ctx − 1]       float32, of the token that followed
    entropy  [windows, ctx]           float32
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from octavo.errors import InvalidFile, InvalidRequest
from octavo.evaluation.files import write_text, writing

__all__ = ["FORMAT", "Base", "BaseWriter", "check_belongs", "open_base"]

FORMAT = "octavo-kld-base-1"
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_HINT = "; take another --base, or another --out where none was given"


@dataclass(frozen=True)
class Base:
    """A finished base file."""

    path: Path
    file: Any

    def hidden(self, window: int, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of one window, read from disk."""
        rows: Tensor = self.file.get_slice("hidden")[window, start:stop]
        return rows

    def nll(self) -> Tensor:
        rows: Tensor = self.file.get_tensor("nll")
        return rows

    def entropy(self) -> Tensor:
        rows: Tensor = self.file.get_tensor("entropy")
        return rows


def open_base(path: Path, identity: Mapping[str, str]) -> Base:
    """The base at `path`, if it belongs to this run. Raises InvalidFile or InvalidRequest."""
    try:
        file = safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise InvalidFile(f"{path} cannot be read as a base file: {error}{_HINT}") from error
    base = Base(path, file)
    check_belongs(path, base.file.metadata() or {}, identity)
    return base


def check_belongs(path: Path, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise InvalidRequest that names everything in which a base differs from this run."""
    if found.get("format") != FORMAT:
        raise InvalidFile(f"{path} is a safetensors file, but no base of format {FORMAT}{_HINT}")
    differs = [name for name in wanted if found.get(name) != wanted[name]]
    if "text" in differs:  # tokenizers are known by what they make of it; of two texts that tells nothing
        differs = [name for name in differs if name != "tokenizer"]
    if differs:
        told = "; ".join(f"{name} is {_differing(found.get(name), wanted[name])}" for name in differs)
        raise InvalidRequest(f"{path} does not belong to this run: {told}{_HINT}")


def _differing(there: str | None, here: str) -> str:
    """Both values, long ones shortened to where they differ."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(there or "", here, strict=False)))
    return f"{_short(there, alike)} there, {_short(here, alike)} here"


def _short(value: str | None, alike: int) -> str:
    if value is None:
        return "missing"
    if len(value) <= 24:
        return repr(value)
    start = alike if alike >= 12 else 0
    return repr("…" * bool(start) + value[start : start + 12] + "…" * (start + 12 < len(value)))


class BaseWriter:
    """Writes a base window by window to `path` + ".part"; `finish` gives it its name.

    A part file of the same run is taken up where it ended: see `done`. Raises InvalidFile on a full disk.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, str], windows: int, ctx: int, hidden: int, dtype: torch.dtype
    ) -> None:
        if dtype not in _NAMES:
            raise InvalidRequest(f"hidden states are {dtype}; a base holds float32, bfloat16 or float16")
        self.path, self.windows, self.ctx = path, windows, ctx
        self._part = path.with_name(path.name + ".part")
        self._progress = path.with_name(path.name + ".part.json")
        self._state = {"identity": dict(identity), "shape": [windows, ctx, hidden, _NAMES[dtype]]}
        header, self._starts, size = _layout(identity, windows, ctx, hidden, dtype)
        self.done = self._resumed()
        if not self.done:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with self._part.open("wb") as file:
                    file.write(header)
                    file.truncate(size)

    def add(self, hidden: Tensor, nll: Tensor, entropy: Tensor) -> None:
        """The next window: hidden [ctx, hidden], nll [ctx − 1], entropy [ctx]."""
        with writing(self.path), self._part.open("r+b") as file:
            for name, rows in (("hidden", hidden), ("nll", nll), ("entropy", entropy)):
                data = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
                file.seek(self._starts[name] + self.done * len(data))
                file.write(data)
        self.done += 1
        write_text(self._progress, json.dumps({**self._state, "done": self.done}))

    def finish(self) -> None:
        """Give the complete file its name."""
        with writing(self.path):
            self._part.replace(self.path)
        self._progress.unlink(missing_ok=True)

    def _resumed(self) -> int:
        try:
            state = json.loads(self._progress.read_text())
        except (OSError, ValueError):
            return 0
        done = state.pop("done", 0)
        return int(done) if state == self._state and self._part.exists() else 0


def _layout(
    identity: Mapping[str, str], windows: int, ctx: int, hidden: int, dtype: torch.dtype
) -> tuple[bytes, dict[str, int], int]:
    """A safetensors header, where each tensor starts in the file, and the file's size in bytes."""
    shapes = {
        "hidden": (_NAMES[dtype], [windows, ctx, hidden], dtype.itemsize),
        "nll": ("F32", [windows, ctx - 1], 4),
        "entropy": ("F32", [windows, ctx], 4),
    }
    entries: dict[str, Any] = {"__metadata__": {"format": FORMAT, **identity}}
    at = 0
    for name, (kind, shape, itemsize) in shapes.items():
        nbytes = itemsize * torch.Size(shape).numel()
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    starts = {name: begin + entries[name]["data_offsets"][0] for name in shapes}
    return len(text).to_bytes(8, "little") + text, starts, begin + at
