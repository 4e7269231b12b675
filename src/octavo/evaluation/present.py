"""What commands measured, as reports: tables, measures and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.evaluation.compare import Difference
from octavo.evaluation.equivalence import Equivalence
from octavo.evaluation.measures import Measure
from octavo.evaluation.plots import Plot, Point
from octavo.evaluation.report import Cell, Report, Table

__all__ = [
    "compare_report",
    "equivalence_report",
    "harness_report",
    "ladder_report",
    "mrcr_report",
    "ruler_report",
    "table_of",
]

Row = Mapping[str, Any]


def table_of(title: str, rows: Sequence[Row], columns: Mapping[str, str]) -> Table:
    """A table of the rows' `columns` (key → heading); an interval is written "low – high"."""
    return Table(title, list(columns.values()), [[_cell(row.get(key)) for key in columns] for row in rows])


def _cell(value: Any) -> Cell:
    if isinstance(value, list | tuple):
        return " – ".join(f"{v:.4g}" for v in value)
    cell: Cell = value
    return cell


_COUNTS = {
    "n": "n",
    "scored": "scored",
    "empty": "empty",
    "errors": "errors",
    "timeouts": "time-outs",
}
_COUNT_NOTE = "Errors, time-outs and empty answers are counted here and never scored as wrong."


def ruler_report(rows: Sequence[Row], measures: Sequence[Measure], setup: dict[str, Any]) -> Report:
    """RULER: one row for each task, length and recipe; score against context."""
    columns = {
        "task": "task",
        "length": "length",
        "target": "KV",
        "score": "score %",
        "interval": "95 %",
        **_COUNTS,
        "tokens": "tokens",
    }
    tasks = dict.fromkeys(row["task"] for row in rows)
    return Report(
        kind="ruler",
        title=f"RULER: {setup['model_name']}",
        setup=setup,
        results={"rows": list(rows)},
        tables=[table_of("Scores", rows, columns)],
        measures=measures,
        plots=[_score_plot(task, [row for row in rows if row["task"] == task]) for task in tasks],
        notes=[_COUNT_NOTE],
    )


def _score_plot(task: str, rows: Sequence[Row]) -> Plot:
    targets = dict.fromkeys(row["target"] for row in rows)
    scored = [row for row in rows if row["score"] is not None]
    series = {t: [_point(row, "length", "score") for row in scored if row["target"] == t] for t in targets}
    shown = {name: points for name, points in series.items() if points}
    return Plot(f"score-{task}", task, "context (tokens)", "score (%)", shown, log_x=True)


def _point(row: Row, x: str, y: str) -> Point:
    low, high = row.get("interval") or (row[y], row[y])
    return float(row[x]), float(row[y]), float(low), float(high)


def mrcr_report(rows: Sequence[dict[str, Any]], setup: dict[str, Any]) -> Report:
    """MRCR: a row for each number of needles and bin. No plot: bins are different prompts, not one curve."""
    measures = [Measure.from_dict(row.pop("measure")) for row in rows]
    columns = {
        "needles": "needles",
        "bin": "bin (tokens)",
        "target": "KV",
        "score": "score",
        "interval": "95 %",
        **_COUNTS,
    }
    left_out = rows[0]["left_out"] if rows else 0
    note = f"{left_out} rows of the file lie outside the bins or the context and were left out."
    return Report(
        kind="mrcr",
        title=f"MRCR: {setup['model_name']}",
        setup=setup,
        results={"rows": rows},
        tables=[table_of("Scores", rows, columns)],
        measures=measures,
        notes=[_COUNT_NOTE, note],
    )


def equivalence_report(results: Sequence[Equivalence], setup: dict[str, Any]) -> Report:
    """Logit equivalence: one row a recipe."""
    rows = [result.as_row() for result in results]
    columns = {
        "target": "KV",
        "prompts": "prompts",
        "positions": "positions",
        "real_frac": "real_frac",
        "mean_tv": "mean TV",
        "p95_tv": "p95 TV",
        "recall_mismatch": "recall mismatch",
        "recall": "recall",
        "reference_recall": "recall, plain",
    }
    return Report(
        kind="equivalence",
        title=f"Logit equivalence: {setup['model_name']}",
        setup=setup,
        results={"rows": rows},
        tables=[table_of("Against plain pages", rows, columns)],
        measures=[measure for result in results for measure in result.measures()],
        notes=[f"A moved top token is real when the two lie more than {rows[0]['margin_nats']} nats apart."],
    )


def ladder_report(rows: Sequence[Row], setup: dict[str, Any], *, invalid: Sequence[str] = ()) -> Report:
    """Speed, size and quality at growing contexts, in one table; of an invalid run only the reasons."""
    title = f"Ladder: {setup['model_name']}"
    if invalid:
        return Report("ladder", title, setup, {"valid": False, "invalid": list(invalid)}, invalid=invalid)
    columns = {
        "ctx": "context",
        "target": "KV",
        "prefill_tokens_per_s": "prefill t/s",
        "decode_tokens_per_s": "decode t/s",
        "decode_ratio": "decode ÷ plain",
        "kv_bytes": "KV bytes",
        "mean_kld": "mean KLD",
        "top1": "same top-1",
        "needle": "needle %",
    }
    measured = {key for row in rows for key in row if row[key] is not None}
    shown = {key: name for key, name in columns.items() if key in measured}
    targets = dict.fromkeys(row["target"] for row in rows)
    series = {
        target: [_point(r, "ctx", "decode_tokens_per_s") for r in rows if r["target"] == target]
        for target in targets
    }
    plot = Plot("decode", "Decode speed", "context (tokens)", "tokens/s", series, log_x=True)
    return Report(
        kind="ladder",
        title=title,
        setup=setup,
        results={"rows": list(rows)},
        tables=[table_of("Contexts and formats", rows, shown)],
        plots=[plot],
        notes=["Speeds are medians of the engine's own clocks; recipes alternate within each context."],
    )


def harness_report(rows: Sequence[Row], measures: Sequence[Measure], setup: dict[str, Any]) -> Report:
    """lm-evaluation-harness: one row for each task, metric and recipe."""
    columns = {
        "task": "task",
        "target": "KV",
        "metric": "metric",
        "filter": "filter",
        "value": "value",
        "stderr": "± stderr",
    }
    return Report(
        kind="lm-eval",
        title=f"lm-evaluation-harness: {setup['model_name']}",
        setup=setup,
        results={"rows": list(rows)},
        tables=[table_of("Results", rows, columns)],
        measures=measures,
    )


def compare_report(found: Sequence[Difference], only: Sequence[str], setup: dict[str, Any]) -> Report:
    """Two reports side by side."""
    rows = [difference.as_dict() for difference in found]
    columns = {
        "key": "measured",
        "target_a": "A is",
        "target_b": "B is",
        "name": "figure",
        "a": "A",
        "b": "B",
        "difference": "B − A",
        "interval": "95 %",
        "verdict": "B is",
    }
    return Report(
        kind="compare",
        title="Comparison",
        setup=setup,
        results={"rows": rows, "unmatched": list(only)},
        tables=[table_of("Differences", rows, columns)],
        notes=[
            "Intervals are bootstrapped; a difference whose interval holds 0 is not shown by these samples.",
            *only,
        ],
    )
