"""A report folder: report.json (everything), report.md, plots as PNG and SVG, and index.html to open."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from octavo.errors import InvalidFile
from octavo.evaluation.files import write_text
from octavo.evaluation.measures import Measure
from octavo.evaluation.plots import Plot, draw

__all__ = ["Report", "Table", "load_report", "number", "plain_data"]

_KEYS = {"kind", "valid", "invalid", "setup", "measures"}
Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table as people read it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Report:
    """What one command measured.

    kind       kld, ruler, mrcr, equivalence, ladder or compare
    setup      what it was measured on and with: model, text, recipe, environment
    results    the command's own JSON document
    invalid    why no figure may be trusted; then there are no tables, measures or plots
    """

    kind: str
    title: str
    setup: dict[str, Any]
    results: dict[str, Any]
    tables: Sequence[Table] = ()
    measures: Sequence[Measure] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()
    invalid: Sequence[str] = field(default=())

    def judged(self, invalid: Sequence[str]) -> Report:
        """The same, without tables, measures and plots if there are reasons against it."""
        if not invalid:
            return self
        return replace(self, tables=(), measures=(), plots=(), invalid=(*self.invalid, *invalid))

    def write(self, folder: Path) -> None:
        """Write all files; a report that was there is replaced. Escapes stand for what is no Unicode, as in
        the name of a text that is not UTF-8. Raises InvalidFile for a file that cannot be written."""
        for plot in self.plots:
            draw(plot, folder)
        document = json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        pages = {"report.json": document + "\n", "report.md": self.markdown(), "index.html": self.page()}
        for name, text in pages.items():
            write_text(folder / name, text)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; numbers that JSON cannot hold become null."""
        data = {
            "kind": self.kind,
            "title": self.title,
            "valid": not self.invalid,
            "invalid": list(self.invalid),
            "setup": self.setup,
            "results": self.results,
            "measures": [m.as_dict() for m in self.measures],
            "notes": list(self.notes),
        }
        plain: dict[str, Any] = plain_data(data)
        return plain

    def markdown(self) -> str:
        """The report as Markdown."""
        parts = [f"# {self.title}", *self._verdict("**INVALID**: ")]
        parts += [f"## {t.title}\n\n{_markdown_table(t)}" for t in self.tables]
        parts += [f"![{p.title}]({p.name}.png)" for p in self.plots]
        parts += self.notes
        setup = "\n".join(f"- {name}: {_flat(value)}" for name, value in self.setup.items())
        return "\n\n".join([*parts, f"## Setup\n\n{setup}"]) + "\n"

    def page(self) -> str:
        """The report as one HTML page beside its plots."""
        parts = [f"<h1>{html.escape(self.title)}</h1>"]
        parts += [f'<p class="invalid">{html.escape(line)}</p>' for line in self._verdict("INVALID: ")]
        parts += [f"<h2>{html.escape(t.title)}</h2>{_html_table(t.header, t.rows)}" for t in self.tables]
        parts += [f'<p><img src="{p.name}.svg" alt="{html.escape(p.title)}"></p>' for p in self.plots]
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        setup = [(name, _flat(value)) for name, value in self.setup.items()]
        parts += ["<h2>Setup</h2>", _html_table(("what", "value"), setup)]
        parts += ['<p>All figures: <a href="report.json">report.json</a></p>']
        return _PAGE.format(title=html.escape(self.title), body="\n".join(parts))

    def _verdict(self, word: str) -> list[str]:
        return [word + reason for reason in self.invalid]


def load_report(folder: Path) -> dict[str, Any]:
    """The document of a report folder (or of its report.json). Raises InvalidFile."""
    path = folder / "report.json" if folder.is_dir() else folder
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not document.keys() >= _KEYS:
            raise ValueError("it is JSON, but no report")
        if not isinstance(document["setup"], dict) or not isinstance(document["invalid"], list):
            raise ValueError("its setup is no table, or its reasons are no list")
        for measure in document["measures"]:
            Measure.from_dict(measure)
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path} cannot be read as a report of `octavo eval`: {error}") from error
    except (KeyError, TypeError) as error:
        raise InvalidFile(f"{path} is a report of `octavo eval` with damaged measures: {error!r}") from error
    return document


def plain_data(value: Any) -> Any:
    """The same without NaN and infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {str(k): plain_data(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(cell: Cell) -> str:
    """A cell as people read it: four significant digits, thousands apart."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        if cell != 0 and (abs(cell) < 1e-3 or abs(cell) >= 1e6):
            return f"{cell:.3g}"
        return f"{cell:,.4g}" if abs(cell) < 1e4 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    return ", ".join(map(_flat, value)) if isinstance(value, list | tuple) else str(value)


def _markdown_table(table: Table) -> str:
    rows = [[number(c).replace("|", "\\|") for c in row] for row in table.rows]
    lines = [list(table.header), ["---"] * len(table.header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(number(c))}</td>" for c in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid #ccc; padding: .25rem .75rem; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; }}
.invalid {{ color: #b00020; font-weight: bold; }}
</style></head><body>
{body}
</body></html>
"""
