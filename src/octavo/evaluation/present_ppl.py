"""Perplexity by position as a report, or as the reasons why it is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.evaluation.measures import Measure, measure_of
from octavo.evaluation.plots import Plot, Point
from octavo.evaluation.ppl import TAIL, PplRow
from octavo.evaluation.present import table_of
from octavo.evaluation.report import Report, Table
from octavo.evaluation.validity import Validity

__all__ = ["ppl_report"]

BLOCK = 256
"""Tokens whose mean is one sample of a comparison."""

_COLUMNS = {
    "ctx": "ctx",
    "dca": "DCA",
    "k": "K",
    "v": "V",
    "ppl": "PPL",
    "tail_ppl": f"last {TAIL:,}",
}


def ppl_report(
    found: Sequence[PplRow], control: Sequence[PplRow], validity: Validity, setup: dict[str, Any]
) -> Report:
    """One row for each context, recipe and mode, and a table by position; of an invalid run the reasons."""
    title, trained = f"Perplexity by position: {setup['model_name']}", setup["trained"]
    told = [row.as_row(trained) for row in control]
    document: dict[str, Any] = {"valid": validity.valid, "control": told}
    if not validity.valid:
        reasons = list(validity.reasons)
        return Report("ppl", title, setup, document | {"invalid": reasons}, invalid=reasons)
    rows = [row.as_row(trained) for row in found]
    off, on = (row["ppl"] for row in told)
    reach = "" if control[1].rows.get("succ") else " No token of it left the first chunk."
    return Report(
        kind="ppl",
        title=title,
        setup=setup,
        results=document | {"rows": rows},
        tables=[table_of("Perplexity", rows, _COLUMNS), _by_position(rows)],
        measures=[_measure(row) for row in found],
        plots=[_plot(rows)],
        notes=[
            f"Control, {control[0].ctx:,} tokens: {off:.4g} without and {on:.4g} with Dual Chunk Attention."
            + reach,
            f"Trained length {trained:,} tokens.",
        ],
    )


def _measure(row: PplRow) -> Measure:
    """By blocks of neighbouring positions: single tokens are not independent."""
    blocks = [(str(n), float(row.nll[n : n + BLOCK].mean())) for n in range(0, len(row.nll), BLOCK)]
    target = f"{row.recipe.pair} DCA {'on' if row.dca else 'off'}"
    return measure_of(f"ctx {row.ctx}", target, "NLL (nats)", blocks, "low")


def _name(row: dict[str, Any]) -> str:
    return f"{row['ctx']:,} {row['k']}:{row['v']} DCA {row['dca']}"


def _by_position(rows: Sequence[dict[str, Any]]) -> Table:
    spans = sorted({(b["from"], b["to"]) for row in rows for b in row["buckets"]})
    cells: list[list[str | float | None]] = []
    for row in rows:
        own = {(b["from"], b["to"]): b["ppl"] for b in row["buckets"]}
        cells.append([_name(row), *(own.get(span) for span in spans)])
    return Table("By position", ["window", *(f"{a:,}–{b:,}" for a, b in spans)], cells)


def _plot(rows: Sequence[dict[str, Any]]) -> Plot:
    series: dict[str, list[Point]] = {}
    for row in rows:
        name = f"{row['k']}:{row['v']} DCA {row['dca']}"
        series.setdefault(name, []).append((row["ctx"], row["ppl"], row["ppl"], row["ppl"]))
    return Plot("ppl", "Perplexity", "context (tokens)", "PPL", series, log_x=True, log_y=True)
