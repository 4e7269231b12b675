"""`octavo eval ppl` and the options of Dual Chunk Attention, on a tiny model trained on 256 tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.cli.conftest import TEXT, Octavo
from tests.tiny import byte_tokenizer, tiny

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def short_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny-short"
    tiny("llama", max_position_embeddings=256).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def ppl(
    octavo: Octavo, short_model: str, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Octavo:
    """eval ppl of the document, in a scratch folder; a random model may understand nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("octavo.evaluation.validity.MAX_PPL", 1e9)
    monkeypatch.setattr("octavo.evaluation.validity.MAX_ENTROPY_SHARE", 1.0)
    return lambda *arguments: octavo("eval", "ppl", short_model, "--text", document, *arguments)


def test_a_ladder_of_both(ppl: Octavo) -> None:
    """256 is the trained length; 2,048 is more than the text has."""
    assert 1024 < len(TEXT) < 2048
    ran = ppl("--out", "here", "--json", "--dca-chunk", "128")
    found = ran.json
    assert ran.status == 0 and ran.out.count("\n") == 1 and found["valid"] and found["report"] == "here"
    assert [(row["ctx"], row["dca"]) for row in found["rows"]] == [
        (256, "off"), (256, "on"), (512, "off"), (512, "on"), (1024, "off"), (1024, "on"),
    ]  # fmt: skip
    for row in found["rows"]:
        assert {"ctx", "dca", "k", "v", "ppl", "tail_ppl", "buckets", "bands"} == row.keys()
        assert (row["k"], row["v"]) == ("plain", "plain") and row["ppl"] > 1
    within_off, within_on, _, on, *_ = found["rows"]
    assert within_on["ppl"] == pytest.approx(within_off["ppl"], rel=1e-4)
    assert on["bands"] == {"intra": 512, "succ": 384, "inter": 256} and within_off["bands"] == {}
    assert [row["ctx"] for row in found["control"]] == [256, 256]
    report = json.loads(Path("here/report.json").read_text())
    assert report["setup"]["trained"] == 256 and report["setup"]["text_name"] == "house.txt"
    assert Path("here/ppl.png").exists() and Path("here/index.html").exists()


def test_lengths_modes_formats_and_chunks_as_asked(ppl: Octavo) -> None:
    asked = ("--ctx", "300,600", "--dca", "on", "--dca-mscale", "1.1", "--tokens", "1300", "--chunk", "100")
    found = ppl(*asked, "--dca-chunk", "128", "--formats", "plain,q4_0", "--json").json
    assert [(row["ctx"], row["k"], row["dca"]) for row in found["rows"]] == [
        (300, "plain", "on"), (300, "q4_0", "on"), (600, "plain", "on"), (600, "q4_0", "on"),
    ]  # fmt: skip
    windows = {300: 4, 600: 2}  # as many as 1,300 tokens hold
    for row in found["rows"]:
        assert row["bands"]["inter"] == windows[row["ctx"]] * (row["ctx"] - 256)
    assert len({round(row["ppl"], 4) for row in found["rows"]}) == 4


def test_a_table_for_people(ppl: Octavo) -> None:
    ran = ppl("--ctx", "300")
    assert ran.status == 0 and "Perplexity" in ran.out and "By position" in ran.out
    assert "Control, 128 tokens:" in ran.out and "Trained length 256 tokens." in ran.out
    assert "report: reports/ppl-" in ran.out


def test_a_control_that_disagrees_leaves_with_1(ppl: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.evaluation.ppl.MOST_GAP", -1.0)
    monkeypatch.setattr("octavo.evaluation.ppl.PplRun.run", lambda *_: pytest.fail("no row means anything"))
    ran = ppl("--ctx", "300", "--json")
    assert ran.status == 1 and ran.json["valid"] is False and "rows" not in ran.json
    assert "within two chunks, perplexity is" in ran.json["invalid"][0]
    ran = ppl("--ctx", "300")
    assert ran.status == 1 and "INVALID: at 128 tokens" in ran.out and "By position" not in ran.out


def test_the_control_runs_where_both_are_the_same(ppl: Octavo) -> None:
    """Two chunks: beyond them a random model does not bear it that far tokens look nearer than they are."""
    ran = ppl("--ctx", "300", "--dca-chunk", "64", "--json")
    assert ran.status == 0 and [row["ctx"] for row in ran.json["control"]] == [128, 128]


def test_a_temperature_is_no_fault_of_the_engine(ppl: Octavo) -> None:
    """It changes short texts too; the control is without it."""
    ran = ppl("--ctx", "256", "--dca-chunk", "128", "--dca-mscale", "3", "--json")
    off, on = ran.json["rows"]
    assert ran.status == 0 and abs(on["ppl"] / off["ppl"] - 1) > 0.02
    assert ran.json["control"][1]["ppl"] == pytest.approx(off["ppl"], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--ctx", "60", "--dca", "on"),
            "would not be used: 60 tokens do not reach beyond the first chunk of 64",
        ),
        (("--dca-chunk", "100"), "dca_chunk is 100; it must be a multiple of 64"),
        (("--dca-chunk", "192"), "twice that must not exceed the model's trained length of 256"),
        (("--dca-mscale", "-1"), "dca_mscale is -1.0"),
        (("--dca-mscale", "nan"), "dca_mscale is nan"),
        (("--dca", "auto"), "'auto' is not one of"),
        (("--ctx", "9000"), "one window takes 9,000"),
    ],
)
def test_wrong_input_is_told_with_status_2(ppl: Octavo, arguments: tuple[str, ...], said: str) -> None:
    ran = ppl(*arguments)
    assert ran.status == 2 and said in ran.err


# the options elsewhere


@pytest.mark.parametrize(("ctx", "attention"), [("300", "dca 64 1.0"), ("200", None)])
def test_a_base_tells_under_which_attention_it_was_made(
    octavo: Octavo, short_model: str, document: str, tmp_path: Path, ctx: str, attention: str | None
) -> None:
    """As it came out: `auto` is another one at another length."""
    asked = ("--ctx", ctx, "--tokens", ctx, "--formats", "q8_0", "--base", str(tmp_path / "base"))
    octavo("eval", "kld", short_model, "--text", document, *asked, "--out", str(tmp_path / "out"))
    with safe_open(tmp_path / "base", "pt") as file:
        assert file.metadata().get("attention") == attention


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dca", "sometimes"), "unknown dca 'sometimes'; known: auto, off, on"),
        (("--dca-chunk", "65"), "dca_chunk is 65"),
        (("--dca", "on", "--dca-chunk", "192"), "dca_chunk is 192"),
        (("--dca-mscale", "0"), "dca_mscale is 0.0"),
        (("--context", "257", "--dca", "off"), "trained for 256 tokens"),
        (("--context", "99999", "--memory", "8MB"), "the pool holds"),
    ],
)
def test_run_refuses_what_cannot_be(
    octavo: Octavo, short_model: str, arguments: tuple[str, ...], said: str
) -> None:
    ran = octavo("run", short_model, "-p", "Hello", *arguments)
    assert ran.status == 2 and said in ran.err


def test_run_says_that_it_is_on(octavo: Octavo, short_model: str, document: str) -> None:
    """A document of 1,800 tokens on a model trained on 256."""
    arguments = (
        "-p",
        "Blue?",
        "--document",
        document,
        "-n",
        "3",
        "--ignore-eos",
        "-ctk",
        "plain",
        "-ctv",
        "plain",
    )
    ran = octavo("run", short_model, *arguments, "--context", "2500", "--json")
    assert ran.status == 0 and ran.json["answers"][0]["completion_tokens"] == 3
    assert "Dual Chunk Attention in chunks of 64 tokens: the context of 2500 exceeds" in ran.err
    ran = octavo("run", short_model, *arguments)
    assert ran.status == 2 and "a sequence holds at most 256" in ran.err
