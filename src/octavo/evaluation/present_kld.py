"""A KLD run as a report, or as the reasons why it is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.evaluation.kld import ContextResult
from octavo.evaluation.measures import Measure
from octavo.evaluation.plots import Plot, Point
from octavo.evaluation.present import table_of
from octavo.evaluation.report import Report

__all__ = ["kld_document", "kld_report"]

_COLUMNS = {
    "k": "K",
    "v": "V",
    "bits_per_value": "bits/value",
    "bytes_per_token": "bytes/token",
    "mean_kld": "mean KLD",
    "median_kld": "median",
    "p90_kld": "p90",
    "p99_kld": "p99",
    "max_kld": "max",
    "top1": "same top-1",
    "ppl": "PPL",
    "ppl_ratio": "PPL ratio",
}
_HIDDEN = ("block_kld",)


def kld_document(results: Sequence[ContextResult]) -> dict[str, Any]:
    """The JSON document: per context, and the rows of all contexts together.

    `control` and `noise_floor` are those of the first context; `contexts` has all of them.
    """
    contexts = [_context(result) for result in results]
    reasons = [f"ctx {r.ctx}: {reason}" for r in results for reason in r.validity.reasons]
    first = contexts[0]
    document: dict[str, Any] = {"valid": not reasons, "control": first["control"], "contexts": contexts}
    if reasons:
        return document | {"invalid": reasons}
    rows = [{"ctx": r.ctx, **_shown(row)} for r in results for row in r.rows]
    return document | {"noise_floor": first["noise_floor"], "rows": rows}


def _context(result: ContextResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ctx": result.ctx,
        "tokens": result.tokens,
        "reference": result.reference,
        "valid": result.validity.valid,
        "control": _shown(result.control) if result.control else None,
    }
    if result.validity.valid:
        assert result.noise_floor is not None
        found |= {"noise_floor": _shown(result.noise_floor), "rows": [_shown(row) for row in result.rows]}
    return found


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _HIDDEN}


def kld_report(results: Sequence[ContextResult], setup: dict[str, Any]) -> Report:
    """Tables, measures and the KLD-against-bits plot; of an invalid run only the reasons."""
    document = kld_document(results)
    title = f"KLD: {setup['model_name']}"
    if not document["valid"]:
        return Report("kld", title, setup, document, invalid=document["invalid"])
    rows = [(result, row) for result in results for row in result.rows]
    measures = [_measure(result, row) for result, row in rows]
    return Report(
        kind="kld",
        title=title,
        setup=setup,
        results=document,
        tables=[table_of(_heading(result), _table_rows(result), _columns(result)) for result in results],
        measures=measures,
        plots=[_plot(result, measures) for result in results if any(_plotted(row) for row in result.rows)],
        notes=["KLD in nats per token against the same engine with plain pages, over the whole vocabulary."],
    )


def _heading(result: ContextResult) -> str:
    assert result.noise_floor is not None and result.control is not None
    return (
        f"ctx {result.ctx}: {result.tokens:,} tokens, plain PPL {result.reference['ppl']:.4g}, "
        f"noise floor {result.noise_floor['mean_kld']:.2g} nats, "
        f"q8_0 control {result.control['mean_kld']:.2g} nats and {result.control['top1']:.4f} same top-1"
    )


def _columns(result: ContextResult) -> dict[str, str]:
    """With the formats of single layers where a recipe has any."""
    layered = any(row["layers"] for row in result.rows)
    return {"k": "K", "v": "V", "layers": "layers"} | _COLUMNS if layered else _COLUMNS


def _table_rows(result: ContextResult) -> list[dict[str, Any]]:
    floor = {**(result.noise_floor or {}), "v": "plain (noise floor)"}
    return [floor, *result.rows]


def _measure(result: ContextResult, row: dict[str, Any]) -> Measure:
    values = tuple(row["block_kld"])
    samples = tuple(map(str, range(len(values))))
    return Measure(f"ctx {result.ctx}", row["target"], "KLD (nats)", values, samples, "low")


def _plotted(row: dict[str, Any]) -> bool:
    return bool(row["mean_kld"] > 0)


def _plot(result: ContextResult, measures: Sequence[Measure]) -> Plot:
    points: list[Point] = []
    labels = {}
    for row in filter(_plotted, result.rows):
        target = row["target"]
        measure = next(m for m in measures if m.key == f"ctx {result.ctx}" and m.target == target)
        low, high = measure.interval or (row["mean_kld"], row["mean_kld"])
        points.append((row["bits_per_value"], row["mean_kld"], low, high))
        labels[(row["bits_per_value"], row["mean_kld"])] = target
    return Plot(
        name=f"kld-{result.ctx}",
        title=f"KLD against size, ctx {result.ctx}",
        x="bits a value",
        y="mean KLD (nats)",
        series={"KLD": points},
        log_y=True,
        lines=False,
        labels=labels,
    )
