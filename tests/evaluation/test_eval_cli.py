"""`octavo eval …` on a tiny model: options, documents, exit statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.cli import main
from octavo.evaluation import setup
from octavo.recipe import Recipe, RecipeFile, Scales
from tests.evaluation.bench import loaded, said

pytest.importorskip("matplotlib")

ONE = ("--lengths", "1200", "--samples", "1")


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MODEL is the tiny one, whatever it is called; reports go to a scratch folder."""

    def load(model: str, **options: Any) -> Any:
        return replace(loaded(), name=model)

    monkeypatch.setattr(setup, "load_model", load)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """What the model itself said; its tokens are bytes, of which only some are text."""
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(65 + n % 26) for n in said() * 2))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    status = main(["eval", *arguments])
    told = capsys.readouterr()
    lines = told.out.splitlines()
    document = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return status, document, told.out + told.err


def test_kld(capsys: pytest.CaptureFixture[str], text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.evaluation.validity.MAX_PPL", 1e9)  # the tiny model speaks no alphabet
    monkeypatch.setattr("octavo.evaluation.validity.MIN_CONTROL_TOP1", 0.9)
    arguments = ["kld", "tiny", "--text", str(text), "--ctx", "128,192", "--tokens", "256", "--recent", "0"]
    status, found, _ = run(capsys, *arguments, "--formats", "q4_0,q8_0:q4_0", "--rotate", "off", "--json")
    assert status == 0 and found["valid"]
    assert [(row["ctx"], row["k"], row["v"]) for row in found["rows"]] == [
        (128, "q4_0", "q4_0"),
        (128, "q8_0", "q4_0"),
        (192, "q4_0", "q4_0"),
        (192, "q8_0", "q4_0"),
    ]
    report = json.loads(Path("reports/kld-tiny/report.json").read_text())
    assert report["setup"]["recipe"]["rotate"] is False and report["setup"]["recipe"]["recent"] == 0
    assert {"version", "commit", "device", "model", "text", "dtype"} <= report["setup"].keys()
    assert Path("reports/kld-tiny/index.html").exists() and Path("reports/kld-tiny/kld-192.png").exists()


def test_recipe_files_are_measured(
    capsys: pytest.CaptureFixture[str], text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("octavo.evaluation.validity.MAX_PPL", 1e9)
    monkeypatch.setattr("octavo.evaluation.validity.MIN_CONTROL_TOP1", 0.9)
    scales = Scales({0: torch.ones(2, 64)}, "ratio")
    recipe = Recipe("q8_0", "q4_0", recent=0, exact_pages=0, layers="1=q4_0", scales=scales)
    RecipeFile(recipe).write(tmp_path / "r.toml")
    arguments = ["kld", "tiny", "--text", str(text), "--ctx", "128", "--recipe", str(tmp_path / "r.toml")]
    status, found, _ = run(capsys, *arguments, "--json")
    assert status == 0 and [row["target"] for row in found["rows"]] == ["q8_0:q4_0+layers+scales"]
    own = found["rows"][0]
    assert own["layers"] == "1=q4_0:q4_0" and found["control"]["layers"] == ""
    status, found, _ = run(capsys, *arguments, "--formats", "q4_0,q8_0:q4_0", "--json")
    targets = ["q8_0:q4_0+layers+scales", "q4_0:q4_0+scales", "q8_0:q4_0+scales"]
    assert [row["target"] for row in found["rows"]] == targets
    few, again, many = sorted(found["rows"], key=lambda row: float(row["bits_per_value"]))
    assert again["mean_kld"] == own["mean_kld"] and again["target"] == own["target"]
    assert few["mean_kld"] != own["mean_kld"] != many["mean_kld"]


def test_an_invalid_run_leaves_with_1_and_no_rows(capsys: pytest.CaptureFixture[str], text: Path) -> None:
    status, found, _ = run(capsys, "kld", "tiny", "--text", str(text), "--ctx", "128", "--json")
    assert status == 1 and found["valid"] is False and "rows" not in found
    assert "perplexity" in " ".join(found["invalid"]) or "control" in " ".join(found["invalid"])
    status, _, printed = run(capsys, "kld", "tiny", "--text", str(text), "--ctx", "128")
    assert status == 1 and "INVALID: ctx 128" in printed and "mean KLD" not in printed


def test_ruler_and_compare(capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "ruler",
        "tiny",
        "--tasks",
        "niah_single_1",
        "--lengths",
        "1200",
        "--samples",
        "2",
        "--batch",
        "2",
    ]
    status, found, _ = run(capsys, *common, "--formats", "plain", "--out", "a", "--json")
    assert status == 0
    [row] = found["rows"]
    assert row["n"] == row["scored"] + row["empty"] == 2 and row["target"] == "plain:plain"
    assert 0.98 * 1200 <= row["tokens"][0] <= row["tokens"][1] <= 1200
    samples = [json.loads(line) for line in Path("a/samples-plain-plain.jsonl").read_text().splitlines()[1:]]
    assert [s["key"] for s in samples] == ["niah_single_1/1200/0", "niah_single_1/1200/1"]
    assert all("references" in s["keep"] for s in samples)
    if row["scored"]:
        assert main(["eval", "compare", "a", "a", "--out", "c"]) == 0
        assert "no difference shown" in capsys.readouterr().out


def test_answers_about_other_data_are_not_taken_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("sea", "land"):
        (tmp_path / name).write_text(f"The {name} is wide. Nobody sees its other end. " * 30)
    arguments = ["ruler", "tiny", "--tasks", "niah_single_2", "--lengths", "1200", "--samples", "1"]
    for name, status in (("sea", 0), ("sea", 0), ("land", 2)):
        found = run(capsys, *arguments, "--formats", "plain", "--essay", name, "--out", "a")
        assert found[0] == status
    assert "holds samples of another run (another data); take another --out" in found[2]
    data = json.loads(Path("a/report.json").read_text())["setup"]["data"]
    assert data == {"essay": sha256((tmp_path / "sea").read_bytes()).hexdigest()}


def test_answers_under_other_attention_are_not_taken_over(capsys: pytest.CaptureFixture[str]) -> None:
    """One length beyond the trained one turns Dual Chunk Attention on for all of them."""
    arguments = ["ruler", "tiny", "--tasks", "niah_single_1", "--samples", "1", "--formats", "plain"]
    status, _, _ = run(capsys, *arguments, "--lengths", "1200", "--out", "a")
    assert status == 0
    status, _, said = run(capsys, *arguments, "--lengths", "1200,4200", "--out", "a")
    assert status == 2 and "holds samples of another run (another dca)" in said


def test_equivalence(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["equivalence", "tiny", "--lengths", "1200", "--samples", "2", "--max-tokens", "4"]
    status, found, _ = run(capsys, *arguments, "--formats", "plain,q4_0", "--json")
    assert status == 0
    plain, q4 = found["rows"]
    assert plain["mean_tv"] == 0 and q4["mean_tv"] > 0 and q4["positions"] <= 8


def test_ladder(capsys: pytest.CaptureFixture[str], text: Path) -> None:
    arguments = ["ladder", "tiny", "--text", str(text), "--contexts", "96,160", "--kld-tokens", "0"]
    status, found, _ = run(
        capsys, *arguments, "--repeats", "1", "--max-tokens", "4", "--formats", "q8_0", "--json"
    )
    assert status == 0 and [(row["ctx"], row["k"]) for row in found["rows"]] == [
        (96, "plain"),
        (96, "q8_0"),
        (160, "plain"),
        (160, "q8_0"),
    ]
    assert all(row["decode_tokens_per_s"] > 0 and row["kv_bytes"] > 0 for row in found["rows"])
    assert found["rows"][0]["decode_ratio"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "said_so"),
    [
        (["kld", "tiny", "--text", "text.txt", "--formats", "q9_0"], "did you mean"),
        (["kld", "tiny", "--text", "text.txt", "--ctx", "0"], "below 1"),
        (["kld", "tiny", "--text", "text.txt", "--ctx", "1,x"], "whole numbers"),
        (["kld", "tiny", "--text", "text.txt", "--ctx", "9000"], "one window takes"),
        (["kld", "tiny", "--text", "text.txt", "--ctx", "64,128", "--base", "b"], "one --ctx"),
        (["kld", "tiny", "--text", "nothing.txt"], "does not exist"),
        (["ruler", "tiny", "--tasks", "qa_1"], "--squad"),
        (["ruler", "tiny", "--tasks", "niah_single_2"], "--essay"),
        (["ruler", "tiny", "--tasks", "needle"], "unknown RULER task"),
        (["ruler", "tiny", "--lengths", "64"], "too short"),
        (["compare", "text.txt", "text.txt"], "cannot be read as a report"),
        (["kld", "tiny", "--text", "text.txt", "--ctx", "64,64"], "has a number twice"),
        (["kld", "tiny", "--text", "text.txt", "--formats", "q4_0,q8_0,q4_0:q4_0"], "has q4_0:q4_0 twice"),
        (["kld", "tiny", "--text", "text.txt", "--formats", "q8_0:"], "'q8_0:' is no pair of formats"),
        (["kld", "tiny", "--text", "text.txt", "--formats", "q8_0,"], "'' is no pair of formats"),
        (["ruler", "tiny", *ONE, "--tasks", "vt,vt"], "--tasks has vt twice"),
        (["ruler", "tiny", *ONE, "--send", "text"], "--send is for a server"),
        (["mrcr", "tiny", "--data", "text.txt", "--timeout", "9"], "--timeout is for a server"),
        (["ruler", "tiny", *ONE, "--url", "http://x/v1", "--timeout", "-1"], "not in the range x>0"),
        (["klt", "tiny"], "did you mean 'kld'"),
    ],
)
def test_wrong_input_is_told_with_status_2(
    capsys: pytest.CaptureFixture[str], text: Path, arguments: list[str], said_so: str
) -> None:
    status, _, printed = run(capsys, *arguments)
    assert status == 2 and said_so in printed


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            [verb, "m", *more, "--out", "text.txt/x"]
            for verb, more in (
                ("kld", ["--text", "text.txt"]),
                ("ppl", ["--text", "text.txt"]),
                ("ladder", ["--text", "text.txt"]),
                ("mrcr", ["--data", "text.txt"]),
                ("equivalence", []),
                ("ruler", []),
            )
        ),
        ["compare", "text.txt", "text.txt", "--out", "text.txt/x"],
        ["kld", "m", "--text", "text.txt", "--base", "text.txt/x/base"],
    ],
    ids=lambda a: f"{a[0]} {a[-2]}",
)
def test_a_place_that_cannot_be_written_is_told_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: Path, arguments: list[str]
) -> None:
    """Before the model is loaded: that takes minutes, and the work behind it longer."""
    monkeypatch.setattr(setup, "load_model", None)
    status, _, said = run(capsys, *arguments)
    told = f"text.txt/x cannot be written: Not a directory; give another {arguments[-2]}"
    assert status == 2 and told in said


def test_texts_and_folders_may_have_names_that_are_not_utf_8(capsys: pytest.CaptureFixture[str]) -> None:
    text, out = Path("caf\udce9.txt"), "\udce9"
    text.write_text("It is raining on the old harbour. " * 60)
    arguments = ["ladder", "tiny", "--text", str(text), "--contexts", "96", "--kld-tokens", "0"]
    arguments += ["--repeats", "1", "--max-tokens", "2", "--formats", "q8_0", "--out", out]
    status, _, said = run(capsys, *arguments)
    assert status == 0 and "report: \\udce9/index.html" in said
    report = json.loads(Path(out, "report.json").read_text())
    assert report["setup"]["text_name"] == str(text)
    assert "caf\\udce9.txt" in Path(out, "report.md").read_text()
    status, found, _ = run(capsys, *arguments, "--json")
    assert status == 0 and found["report"] == out


@pytest.mark.parametrize("verb", ["kld --text", "ppl --text", "ladder --text", "ruler --essay"])
def test_what_is_no_text_is_told_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(setup, "load_model", None)
    Path("latin.txt").write_bytes(b"caf\xe9")
    name, option = verb.split()
    status, _, said = run(capsys, name, "tiny", option, "latin.txt")
    assert status == 2 and "latin.txt is not UTF-8: byte 3 of 4 is 0xe9" in said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--contexts", "96,9000"], "fewer than context 9,000; give a longer text or smaller --contexts"),
        (["--contexts", "96,128", "--samples", "1"], "length 96 is too short for niah_single_1"),
        (["--contexts", "96,1"], "ctx is 1; a window needs at least 2 tokens"),
    ],
)
def test_a_ladder_that_cannot_be_climbed_is_not_begun(
    capsys: pytest.CaptureFixture[str], text: Path, more: list[str], told: str
) -> None:
    status, _, said = run(capsys, "ladder", "tiny", "--text", str(text), *more, "--out", "a")
    assert status == 2 and told in said and not Path("a").exists()


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """A server that answers, and its handler; the tokenizer beside it is the tiny model's."""
    from tests.evaluation.test_answers import server

    monkeypatch.setattr(setup, "load_tokenizer", lambda model: loaded().tokenizer)
    with server() as served:
        yield served


def test_a_server_is_measured_with_the_same_prompts(
    capsys: pytest.CaptureFixture[str], peer: tuple[str, Any]
) -> None:
    url, handler = peer
    arguments = ["ruler", "tiny", "--tasks", "niah_single_1", "--lengths", "1200", "--samples", "2"]
    status, found, _ = run(capsys, *arguments, "--url", url, "--url-model", "peer", "--json")
    [row] = found["rows"]
    assert status == 0 and row["target"] == "peer" and row["scored"] == 2 and row["score"] == 0.0
    assert len(handler.seen) == 2 and isinstance(handler.seen[0]["prompt"], list)
    assert len(handler.seen[0]["prompt"]) + 128 <= 1200


def test_answers_of_another_server_are_not_taken_over(
    capsys: pytest.CaptureFixture[str], peer: tuple[str, Any]
) -> None:
    """Servers are compared under one name, and reports have one place by default."""
    url, handler = peer
    arguments = ["ruler", "tiny", "--tasks", "niah_single_1", "--lengths", "1200", "--samples", "1"]
    for again in (url, url + "/"):
        assert run(capsys, *arguments, "--url", again)[0] == 0 and len(handler.seen) == 1
    told = "holds samples of another run (another "
    other = url.replace("127.0.0.1", "localhost")
    assert f"{told}url)" in run(capsys, *arguments, "--url", other)[2]
    assert f"{told}send)" in run(capsys, *arguments, "--url", url, "--send", "text")[2]
    assert len(handler.seen) == 1


def test_a_server_that_is_not_there_measures_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "load_tokenizer", lambda model: loaded().tokenizer)
    arguments = ["ruler", "tiny", "--tasks", "niah_single_1", "--lengths", "1200", "--samples", "2"]
    status, _, said = run(capsys, *arguments, "--url", "http://127.0.0.1:1/v1")
    assert status == 1
    assert "INVALID: tiny: none of 2 prompts was answered; the first time: http://127.0.0.1:1/v1" in said
    report = json.loads(Path("reports/ruler-tiny/report.json").read_text())
    assert not report["valid"] and not report["measures"]


@pytest.mark.parametrize(
    "option",
    [("--formats", "q4_0"), ("--dca", "on"), ("--device", "cpu"), ("--recent", "0")],
    ids=lambda o: o[0],
)
def test_a_server_has_its_own_settings(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ruler", "tiny", "--tasks", "niah_single_1", "--lengths", "512", "--url", "http://x/v1"]
    status, _, said = run(capsys, *arguments, *option)
    assert status == 2 and f"{option[0]} is for an engine made here" in said


@pytest.mark.parametrize("more", [(), ("--dca", "off")], ids=["auto", "off"])
@pytest.mark.parametrize("option", [("--dca-chunk", "128"), ("--dca-mscale", "2")], ids=lambda o: o[0])
def test_settings_of_attention_that_is_off_are_refused(
    option: tuple[str, str], more: tuple[str, ...], capsys: pytest.CaptureFixture[str], text: Path
) -> None:
    kld = ["kld", "tiny", "--text", str(text), "--ctx", "128", "--tokens", "128", "--formats", "q4_0"]
    for command in (kld, ["equivalence", "tiny", "--lengths", "1200", "--samples", "1"]):
        status, _, printed = run(capsys, *command, *option, *more)
        why = "--dca is off" if more else "tokens are within the"
        assert status == 2 and f"{option[0]} would change nothing: " in printed and why in printed
