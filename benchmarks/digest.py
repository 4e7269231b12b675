"""Results of benchmarks.quality as one file a model, tables in markdown, and plots of KLD against size.

    python -m benchmarks.digest FOLDER PREFIX --out benchmarks/results/quality-NAME.json --plots docs

Takes FOLDER/PREFIX-*.json. Intervals are 95 % bootstraps over blocks of 256 tokens; ratios are of the same
blocks. Prints what was asked for before measuring, and what came out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import torch

from octavo.evaluation.plots import Plot, draw
from octavo.evaluation.statistics import bootstrap, quantile

Row = dict[str, Any]

NAMES = {
    "kld-all": [
        ({"centre": False, "exact_pages": 0, "rotate": True}, "as is"),
        ({"centre": False, "exact_pages": 0, "rotate": False}, "not rotated"),
        ({"centre": True, "exact_pages": 0}, "centred"),
        ({"centre": True, "exact_pages": 1}, "default"),
    ],
    "kld": [
        ({"rotate": rotate, "recent": recent}, f"{'' if rotate else 'not '}rotated, recent {recent}")
        for rotate in (True, False)
        for recent in (0, 64)
    ],
}
CLAIMS = [  # what, on which setting, at most this share of what, on which
    ("turbo4_tcq", "default", 1.0, "q5_0", "as is"),
    ("turbo3_tcq", "default", 1.0, "q4_0", "as is"),
    ("turbo3_tcq", "default", 0.25, "turbo3", "as is"),
    ("q8_0", "centred", 1.0, "q8_0", "as is"),
    ("q8_0", "default", 1.0, "q8_0", "as is"),
]


def read_rows(files: list[Path]) -> tuple[Row, list[Row]]:
    """The setup of the first file, and the KLD rows of all, later files winning."""
    setup: Row = {}
    rows: dict[tuple[Any, ...], Row] = {}
    for file in files:
        document = json.loads(file.read_text())
        for cell in document.get("cells", ()):
            if cell.get("job") in NAMES:
                setup = setup or document["setup"]
                for row in rows_of(cell, document["setup"]["commit"]):
                    rows[tuple(row[n] for n in ("job", "text", "ctx", "setting", "target"))] = row
    return setup, list(rows.values())


def rows_of(cell: Row, commit: str) -> Iterator[Row]:
    """A cell's rows, each with what it belongs to."""
    setting = next(name for settings, name in NAMES[cell["job"]] if settings == cell["settings"])
    told = {"job": cell["job"], "text": cell["text"].removesuffix(".txt"), "setting": setting}
    [context] = cell["contexts"]
    if not cell["valid"]:
        raise SystemExit(f"{told} is invalid: {cell['invalid']}")
    told |= {"ctx": context["ctx"], "tokens": context["tokens"], "reference_ppl": context["reference"]["ppl"]}
    told |= {"noise_floor": context["noise_floor"]["mean_kld"], "commit": commit}
    for row, blocks in zip(cell["rows"], cell["block_kld"], strict=True):
        kept = {n: row[n] for n in row if n not in ("ctx", "layers", "values")}
        yield told | kept | {"interval": bootstrap(blocks), "block_kld": blocks}


def find(rows: list[Row], **wanted: Any) -> Row | None:
    """The row with these values, by pair as the command line writes it."""
    k, _, v = wanted.pop("pair").partition(":")
    wanted["target"] = f"{k}:{v or k}"
    return next((row for row in rows if all(row[n] == x for n, x in wanted.items())), None)


def claims(rows: list[Row]) -> list[Row]:
    """Every claim on every text and context, with the interval of the ratio."""
    told = []
    places = sorted({(r["text"], r["ctx"]) for r in rows if r["job"] == "kld-all"})
    for text, ctx in places:
        for a, setting, share, b, other in CLAIMS:
            where = {"job": "kld-all", "text": text, "ctx": ctx}
            left = find(rows, pair=a, setting=setting, **where)
            right = find(rows, pair=b, setting=other, **where)
            if left and right:
                ratio, interval = ratio_of(left["block_kld"], right["block_kld"])
                what = f"{a} {setting} against {b} {other}"
                told.append(
                    {
                        "text": text,
                        "ctx": ctx,
                        "what": what,
                        "bar": share,
                        "ratio": ratio,
                        "interval": interval,
                    }
                )
    return told


def ratio_of(a: list[float], b: list[float]) -> tuple[float, tuple[float, float]]:
    """mean(a) / mean(b) of the same blocks, and its 95 % bootstrap interval."""
    left, right = (torch.tensor(x, dtype=torch.float64) for x in (a, b))
    picks = torch.randint(len(a), (4000, len(a)), generator=torch.Generator().manual_seed(42))
    ordered = (left[picks].mean(1) / right[picks].mean(1)).sort().values
    return float(left.mean() / right.mean()), (quantile(ordered, 0.025), quantile(ordered, 0.975))


def table(rows: list[Row], job: str, ctx: int) -> str:
    """Mean KLD by pair, a column for each text and setting."""
    own = [r for r in rows if r["job"] == job and r["ctx"] == ctx]
    order = [name for _, name in NAMES[job]]
    columns = sorted({(r["text"], r["setting"]) for r in own}, key=lambda c: (c[0], order.index(c[1])))
    pairs = sorted(
        {r["target"] for r in own}, key=lambda t: -max(r["bits_per_value"] for r in own if r["target"] == t)
    )
    lines = [
        "| K:V | bits | " + " | ".join(f"{t}, {s}" for t, s in columns) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for pair in pairs:
        bits = "–".join(f"{b:.2f}" for b in sorted({r["bits_per_value"] for r in own if r["target"] == pair}))
        found = [find(own, pair=pair, text=t, setting=s) for t, s in columns]
        lines.append(f"| {short(pair)} | {bits} | " + " | ".join(figure(r) for r in found) + " |")
    return "\n".join(lines)


def short(pair: str) -> str:
    k, _, v = pair.partition(":")
    return k if k == v else pair


def figure(row: Row | None) -> str:
    return f"{row['mean_kld']:.3g}" if row else ""


def plot(rows: list[Row], name: str, text: str, folder: Path) -> None:
    """KLD against bits on one text: formats as is and by default, pairs of two formats by default."""
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    labels = {}
    own = [r for r in rows if (r["job"], r["text"], r["ctx"]) == ("kld-all", text, 2048)]
    for title, setting, alike in (
        ("as is", "as is", True),
        ("default", "default", True),
        ("default, keys : values", "default", False),
    ):
        some = [r for r in own if r["setting"] == setting and (r["k"] == r["v"]) == alike]
        series[title] = [(r["bits_per_value"], r["mean_kld"], *r["interval"]) for r in some]
        if title == "default":
            labels = {(r["bits_per_value"], r["mean_kld"]): r["k"] for r in some}
    title = f"{name}: every token quantised, ctx 2,048, {text}"
    axes = {"x": "bits a value", "y": "mean KLD (nats)", "log_y": True, "lines": False}
    whole = Plot(f"kld-{name}", title, series=series, labels=labels, **axes)  # type: ignore[arg-type]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):  # text stays text
        draw(whole, folder, endings=("svg",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("prefix")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plots", type=Path)
    options = parser.parse_args()
    setup, rows = read_rows(sorted(options.folder.glob(f"{options.prefix}-*.json")))
    found = claims(rows)
    for job in NAMES:
        for ctx in sorted({r["ctx"] for r in rows if r["job"] == job}):
            print(f"\n{job}, ctx {ctx}\n\n{table(rows, job, ctx)}")
    print()
    for claim in found:
        low, high = claim["interval"]
        met = "met" if claim["ratio"] <= claim["bar"] else "SHORT"
        figures = f"{claim['ratio']:.3f} ({low:.3f} to {high:.3f}), bar {claim['bar']}: {met}"
        print(f"{claim['text']} {claim['ctx']}: {claim['what']}: {figures}")
    kept = [{n: x for n, x in row.items() if n != "block_kld"} for row in rows]
    document = {"benchmark": "quality", "setup": setup, "claims": found, "rows": kept}
    options.out.write_text(json.dumps(document, indent=None).replace('{"job"', '\n{"job"') + "\n")
    if options.plots:
        plot(rows, options.out.stem.removeprefix("quality-"), "handbook", options.plots)


if __name__ == "__main__":
    main()
