"""Two reports side by side: which differences exceed their own uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequest
from octavo.evaluation.measures import Measure
from octavo.evaluation.statistics import Interval, bootstrap_difference

__all__ = ["Difference", "compare_reports", "same_input"]

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Difference:
    """One measure in both reports. `interval` is of B − A; `paired` when the samples were the same.

    target_a, target_b   what was measured: the same, or the two recipes that are compared
    """

    key: str
    target_a: str
    target_b: str
    name: str
    a: float
    b: float
    better: str
    paired: bool
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """ "better" or "worse" (B against A) where the interval leaves 0 out, else "no difference shown"."""
        if self.interval is None:
            return "unknown: one sample"
        low, high = self.interval
        if low <= 0 <= high:
            return "no difference shown"
        return "better" if (low > 0) == (self.better == "high") else "worse"

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "target_a": self.target_a,
            "target_b": self.target_b,
            "name": self.name,
            "a": self.a,
            "b": self.b,
            "difference": self.b - self.a,
            "interval": list(self.interval) if self.interval else None,
            "paired": self.paired,
            "verdict": self.verdict,
        }


def compare_reports(a: dict[str, Any], b: dict[str, Any]) -> tuple[list[Difference], list[str]]:
    """The differences of all measures that both reports have, and the names of those that only one has.

    Raises InvalidRequest if the reports are of different kinds, invalid, or share nothing.
    """
    for name, report in (("A", a), ("B", b)):
        if not report["valid"]:
            reasons = "; ".join(report["invalid"])
            raise InvalidRequest(f"report {name} is invalid ({reasons}); nothing to compare")
    if a["kind"] != b["kind"]:
        raise InvalidRequest(f"A is a {a['kind']} report, B a {b['kind']} report; compare like with like")
    under = [report["setup"].get("dca") for report in (a, b)]
    if a["kind"] == "kld" and under[0] != under[1]:
        told = [f"chunks of {dca['chunk']}" if dca else "off" for dca in under]
        raise InvalidRequest(
            f"Dual Chunk Attention differs (A {told[0]}, B {told[1]}), so their KLD has different "
            "references; compare runs under the same"
        )
    left, right = _measures(a), _measures(b)
    if not left or not right:
        name = "B" if left else "A"
        raise InvalidRequest(f"report {name} keeps no sample of its figures; nothing to compare")
    if not left.keys() & right.keys():
        left, right = _without_target(left), _without_target(right)
    shared = [key for key in left if key in right]
    if not shared:
        raise InvalidRequest(f"the reports share no measure; A has {_some(left)}, B has {_some(right)}")
    only = [f"{_named(key)} only in A" for key in left if key not in right]
    only += [f"{_named(key)} only in B" for key in right if key not in left]
    return [_difference(left[key], right[key], same_input(a, b)) for key in shared], only


def same_input(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether both reports saw the same samples, so that they may be compared pairwise."""
    told = ("model", "text", "tokenizer", "seed", "prompting", "data")
    return all(a["setup"].get(name) == b["setup"].get(name) for name in told)


def _measures(report: dict[str, Any]) -> dict[Key, Measure]:
    measures = [Measure.from_dict(data) for data in report["measures"]]
    return {(m.key, m.target, m.name): m for m in measures if m.values}


def _without_target(measures: dict[Key, Measure]) -> dict[Key, Measure]:
    """Keys without the target, where there is only one: two recipes are then compared with each other."""
    if len({m.target for m in measures.values()}) != 1:
        return measures
    return {(key, "", name): measure for (key, _, name), measure in measures.items()}


def _named(key: Key) -> str:
    return " · ".join(part for part in key if part)


def _difference(a: Measure, b: Measure, same: bool) -> Difference:
    paired = same and a.samples == b.samples
    interval = None
    if len(a.values) > 1 and len(b.values) > 1:
        interval = bootstrap_difference(a.values, b.values, paired=paired)
    return Difference(
        a.key, a.target, b.target, a.name, a.mean or 0.0, b.mean or 0.0, a.better, paired, interval
    )


def _some(measures: dict[Key, Measure]) -> str:
    names = [_named(key) for key in measures]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
