"""Report folders, and two of them side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import InvalidFile, InvalidRequest
from octavo.evaluation.compare import compare_reports
from octavo.evaluation.measures import Measure
from octavo.evaluation.plots import Plot
from octavo.evaluation.present import compare_report, ruler_report
from octavo.evaluation.present_kld import kld_report
from octavo.evaluation.report import Report, Table, load_report, number
from octavo.evaluation.statistics import bootstrap, bootstrap_difference, quantile
from tests.evaluation.bench import kld_run, windows

SETUP = {"model_name": "tiny", "model": "m", "seed": 42}


def test_a_folder_holds_everything(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = Plot("p", "Plot", "x", "y", {"a": [(1024.0, 1.0, 0.5, 2.0), (2048.0, 2.0, 1.0, 3.0)]}, log_x=True)
    measure = Measure("t 1024", "q8_0:q8_0", "score (%)", (100.0, 0.0), ("a", "b"))
    table = Table("Scores <b>", ["task", "score"], [["a|b", 50.0], ["c", None]])
    report = Report("ruler", "T & co", SETUP, {"bad": float("inf")}, [table], [measure], [plot], ["A note."])
    report.write(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.json", "report.md", "index.html", "p.png", "p.svg"}
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (tmp_path / "p.svg").read_text()
    document = load_report(tmp_path)
    assert document["valid"] and document["results"] == {"bad": None}
    assert document["measures"][0]["mean"] == 50.0 and document["measures"][0]["interval"] == [0.0, 100.0]
    page, text = (tmp_path / "index.html").read_text(), (tmp_path / "report.md").read_text()
    assert "T &amp; co" in page and "Scores &lt;b&gt;" in page and 'src="p.svg"' in page
    assert "| a\\|b | 50 |" in text and "| c | – |" in text and "![Plot](p.png)" in text


def test_an_invalid_run_shows_its_reasons_and_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.evaluation.validity.MAX_CONTROL_KLD", 0.0)
    result = kld_run(tmp_path / "run").run(windows(count=1))
    report = kld_report([result], SETUP)
    report.write(tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "**INVALID**: ctx 192: the q8_0 control" in text and "| K |" not in text
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert not document["valid"] and "rows" not in document["results"] and document["measures"] == []
    assert document["results"]["control"]["mean_kld"] > 0


def test_a_kld_report_has_rows_floor_and_control(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = kld_report([kld_run(tmp_path / "run").run(windows())], SETUP)
    report.write(tmp_path / "out")
    found = load_report(tmp_path / "out")["results"]
    assert [(row["k"], row["v"], row["ctx"]) for row in found["rows"]] == [
        ("q8_0", "q8_0", 192),
        ("q4_0", "q4_0", 192),
    ]
    wanted = "k v bits_per_value mean_kld median_kld p99_kld max_kld top1 ppl ppl_ratio"
    assert set(wanted.split()) <= found["rows"][0].keys()
    assert abs(found["noise_floor"]["mean_kld"]) < 1e-6 and found["control"]["top1"] >= 0.98
    assert (tmp_path / "out" / "kld-192.svg").exists()
    assert "noise floor" in (tmp_path / "out" / "report.md").read_text()


def document(target: str, values: list[float], **setup: Any) -> dict[str, Any]:
    measure = Measure(
        "niah 1024", target, "score (%)", tuple(values), tuple(f"s{n}" for n in range(len(values)))
    )
    return Report("ruler", "t", {**SETUP, **setup}, {}, measures=[measure]).as_dict()


def test_differences_are_told_from_noise() -> None:
    good, bad = [100.0] * 50, [100.0] * 35 + [0.0] * 15
    [found], only = compare_reports(document("plain:plain", good), document("q4_0:q4_0", bad))
    assert found.paired and found.verdict == "worse" and found.b - found.a == -30.0 and only == []
    assert found.interval is not None and -45 < found.interval[0] < found.interval[1] < -15
    [same], _ = compare_reports(document("a:a", bad), document("b:b", bad[::-1]))
    assert same.verdict == "no difference shown"
    [close], _ = compare_reports(document("a:a", good), document("b:b", [*good[:49], 0.0]))
    assert close.verdict == "no difference shown"
    [unpaired], _ = compare_reports(document("a:a", good), document("a:a", bad, seed=7))
    assert not unpaired.paired and unpaired.verdict == "worse"


def test_low_is_better_for_damage() -> None:
    def kld(values: list[float]) -> dict[str, Any]:
        measure = Measure(
            "ctx", "q4_0:q4_0", "KLD", tuple(values), tuple(map(str, range(len(values)))), "low"
        )
        return Report("kld", "t", SETUP, {}, measures=[measure]).as_dict()

    [found], _ = compare_reports(kld([0.1, 0.11, 0.12] * 5), kld([0.05, 0.06, 0.07] * 5))
    assert found.verdict == "better"
    row = compare_report([found], ["x only in A"], {"version": "0"})
    assert row.results["rows"][0]["verdict"] == "better" and row.results["unmatched"] == ["x only in A"]


def test_what_cannot_be_compared_is_refused() -> None:
    a = document("a:a", [1.0, 2.0])
    with pytest.raises(InvalidRequest, match="kld report"):
        compare_reports(a, {**a, "kind": "kld"})
    with pytest.raises(InvalidRequest, match="report B is invalid"):
        compare_reports(a, {**a, "valid": False, "invalid": ["why"]})
    other = {**a, "measures": [{**a["measures"][0], "key": "vt 1024"}]}
    with pytest.raises(InvalidRequest, match="share no measure"):
        compare_reports(a, other)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"setup": 3}, "its setup is no table"),
        ({"invalid": None}, "its reasons are no list"),
        ({"measures": 3}, "damaged measures"),
        ({"measures": [{"key": "x"}]}, "damaged measures: KeyError"),
    ],
)
def test_damaged_reports_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    sound = {"kind": "kld", "valid": True, "invalid": [], "setup": {}, "measures": []}
    (tmp_path / "report.json").write_text(json.dumps(sound))
    load_report(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps({**sound, **changes}))
    with pytest.raises(InvalidFile, match=told):
        load_report(tmp_path)


def test_reports_without_samples_are_not_compared() -> None:
    report: dict[str, Any] = {"kind": "ladder", "valid": True, "invalid": [], "setup": {}, "measures": []}
    with pytest.raises(InvalidRequest, match="report A keeps no sample of its figures"):
        compare_reports(report, report)


def test_other_files_are_no_reports(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(InvalidFile, match="no report"):
        load_report(tmp_path)


def test_statistics() -> None:
    import torch

    values = torch.tensor([1.0, 2.0, 4.0])
    assert quantile(values, 0.5) == 2.0 and quantile(values, 0.75) == 3.0 and quantile(values, 1.0) == 4.0
    low, high = bootstrap([0.0, 1.0] * 200)
    assert 0.44 < low < 0.46 and 0.54 < high < 0.56  # ± 1.96 · 0.5 / √400
    assert bootstrap([0.0, 1.0] * 200) == (low, high)
    paired = bootstrap_difference([1.0, 5.0, 9.0], [2.0, 6.0, 10.0], paired=True)
    assert paired == (1.0, 1.0)
    loose = bootstrap_difference([1.0, 5.0, 9.0], [2.0, 6.0, 10.0], paired=False)
    assert loose[0] < 0 < loose[1]


def test_numbers_are_readable() -> None:
    cells = [0.000131, 0.0364, 1234.5, 48832, None, "x", 0.0, 1.0]
    assert [number(c) for c in cells] == ["0.000131", "0.0364", "1,234", "48,832", "–", "x", "0", "1"]


def test_ruler_reports_leave_unscored_cells_out_of_plots() -> None:
    row = {"task": "vt", "length": 1024, "target": "a:a", "score": None, "interval": None}
    scored = {**row, "length": 2048, "score": 50.0, "interval": [40.0, 60.0]}
    report = ruler_report([row, scored], [], SETUP)
    assert report.plots[0].series == {"a:a": [(2048.0, 50.0, 40.0, 60.0)]}
