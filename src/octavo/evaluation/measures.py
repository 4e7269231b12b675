"""Measures: means that carry the samples they are made of, so that two reports can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.evaluation.statistics import Interval, bootstrap

__all__ = ["Measure", "measure_of"]


@dataclass(frozen=True)
class Measure:
    """One figure of a report.

    key       what was measured, such as "niah_single_1 4096"
    target    on what: a recipe's pair of formats, or a server's model
    name      the figure and its unit, such as "KLD (nats)"
    values    one a sample
    samples   the samples' names: measures with the same names are compared pairwise
    better    "low" or "high"
    """

    key: str
    target: str
    name: str
    values: tuple[float, ...]
    samples: tuple[str, ...]
    better: str = "high"

    @property
    def mean(self) -> float | None:
        """The mean; None of no samples."""
        return sum(self.values) / len(self.values) if self.values else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % bootstrap interval of the mean; None of fewer than two samples."""
        return bootstrap(self.values) if len(self.values) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for report.json."""
        return {
            "key": self.key,
            "target": self.target,
            "name": self.name,
            "better": self.better,
            "mean": self.mean,
            "interval": list(self.interval) if self.interval else None,
            "values": list(self.values),
            "samples": list(self.samples),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measure:
        """The inverse of `as_dict`. Raises KeyError or TypeError on other data."""
        values, samples = tuple(map(float, data["values"])), tuple(map(str, data["samples"]))
        return cls(data["key"], data["target"], data["name"], values, samples, data["better"])


def measure_of(
    key: str, target: str, name: str, scores: Sequence[tuple[str, float]], better: str = "high"
) -> Measure:
    """A measure from (sample, value) pairs."""
    return Measure(key, target, name, tuple(v for _, v in scores), tuple(s for s, _ in scores), better)
