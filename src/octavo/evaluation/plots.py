"""Plots of a report, drawn by matplotlib without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from octavo.errors import InvalidRequest
from octavo.evaluation.files import writing

__all__ = ["Plot", "Point", "draw", "require_plots"]

Point = tuple[float, float, float, float]
"""x, y, and the ends of y's interval."""


@dataclass(frozen=True)
class Plot:
    """Lines through points with error bars; `name` is the file's, without ending. Labels stand at points."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[Point]]
    log_x: bool = False
    log_y: bool = False
    lines: bool = True
    labels: Mapping[tuple[float, float], str] | None = None


def require_plots() -> None:
    """Raise InvalidRequest if matplotlib is missing: better before a measurement than after it."""
    if find_spec("matplotlib") is None:
        raise InvalidRequest("reports are drawn by matplotlib; pip install 'octavo[eval]'")


def draw(plot: Plot, folder: Path, endings: Sequence[str] = ("png", "svg")) -> None:
    """Write the plot to `folder`, as PNG and SVG unless `endings` say otherwise."""
    require_plots()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in plot.series.items():
        x, y, low, high = zip(*points, strict=True)
        below = [max(0.0, a - b) for a, b in zip(y, low, strict=True)]
        above = [max(0.0, b - a) for a, b in zip(y, high, strict=True)]
        style = "o-" if plot.lines else "o"
        axes.errorbar(x, y, yerr=[below, above], fmt=style, capsize=3, label=name, markersize=5)
    for (x_at, y_at), label in (plot.labels or {}).items():
        axes.annotate(label, (x_at, y_at), textcoords="offset points", xytext=(5, 4), fontsize=8)
    if plot.log_x:
        axes.set_xscale("log", base=2)
    if plot.log_y:
        axes.set_yscale("log")
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    axes.grid(alpha=0.3)
    if len(plot.series) > 1:
        axes.legend(fontsize=8)
    for ending in endings:
        path = folder / f"{plot.name}.{ending}"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=130)
