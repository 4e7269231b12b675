"""Per-token values of one measured recipe, kept in a file that an interrupted run takes up again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from octavo.evaluation.files import writing
from octavo.evaluation.statistics import quantile

__all__ = ["RowFile", "Summary", "summarise"]

_NAMES = ("kld", "same_top", "nll")
_SAVE_SECONDS = 20.0
_BLOCK_TOKENS = 256


class RowFile:
    """kld [windows, ctx] float32 in nats, same_top [windows, ctx] bool, nll [windows, ctx − 1] float32.

    A file of another run (other identity) is started afresh. What was added is on disk when `with` ends,
    whatever ends it.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path = path
        self._identity = json.dumps(dict(identity), sort_keys=True)
        self._values: dict[str, list[Tensor]] = {name: [] for name in _NAMES}
        self._saved = time.monotonic()
        self._load()

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *why: object) -> None:
        if self.done:
            self.save()

    @property
    def done(self) -> int:
        """Windows that are there whole: Ctrl-C may fall between two of a window's values."""
        return min(map(len, self._values.values()))

    def add(self, **values: Tensor) -> None:
        """The next window's values; saved now and then."""
        for name in _NAMES:
            self._values[name].append(values[name])
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write everything so far, at once or not at all. Raises InvalidFile on a full disk."""
        scratch = self.path.with_name(self.path.name + ".part")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_file(self.tensors(), scratch, metadata={"identity": self._identity})
            scratch.replace(self.path)
        self._saved = time.monotonic()

    def tensors(self) -> dict[str, Tensor]:
        """The values by name, windows first."""
        done = self.done
        return {name: torch.stack(parts[:done]) for name, parts in self._values.items()}

    def _load(self) -> None:
        try:
            with safe_open(self.path, framework="pt") as file:
                if (file.metadata() or {}).get("identity") == self._identity:
                    self._values = {name: list(file.get_tensor(name)) for name in _NAMES}
        except (OSError, SafetensorError):
            return  # no file yet, or a broken one: the row is measured anew


@dataclass(frozen=True)
class Summary:
    """The table's figures, and the mean KLD of blocks of tokens: what a bootstrap draws from.

    Neighbouring tokens' damage is related, so single tokens would make intervals too narrow.
    """

    figures: dict[str, float]
    blocks: list[float]


def summarise(row: RowFile) -> Summary:
    """Mean, quantiles and maximum KLD in nats, same-top-1, perplexity."""
    values = row.tensors()
    ordered = values["kld"].flatten().double().sort().values
    figures = {
        "mean_kld": float(ordered.mean()),
        "median_kld": quantile(ordered, 0.5),
        "p90_kld": quantile(ordered, 0.9),
        "p99_kld": quantile(ordered, 0.99),
        "max_kld": float(ordered[-1]),
        "top1": float(values["same_top"].double().mean()),
        "ppl": float(values["nll"].double().mean().exp()),
    }
    return Summary(figures, _blocks(values["kld"]))


def _blocks(kld: Tensor) -> list[float]:
    """kld [windows, ctx] → the mean of each 256 tokens of a window; the rest joins the last."""
    count = max(1, kld.shape[1] // _BLOCK_TOKENS)
    parts = kld.double().tensor_split([n * _BLOCK_TOKENS for n in range(1, count)], dim=1)
    return torch.stack([part.mean(1) for part in parts], 1).flatten().tolist()
