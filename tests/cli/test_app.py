"""Verbs, mistyped names, exit statuses, and a quick start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.cli import formats
from octavo.cli.app import VERBS
from octavo.errors import OctavoError, PoolFull
from tests.cli.conftest import Octavo


def test_help_names_every_verb(octavo: Octavo) -> None:
    help = octavo("--help")
    assert help.status == 0
    assert all(f"  {verb} " in help.out for verb in VERBS)


def test_no_arguments_show_the_help(octavo: Octavo) -> None:
    shown = octavo()
    assert shown.status == 2 and "Usage: octavo" in shown.err


def test_starting_does_not_import_torch() -> None:
    code = "import sys, octavo.cli; octavo.cli.main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean 'run'?"),
        (["bench", "fanuot"], "did you mean 'fanout'?"),
        (["run", "m", "--contxt", "5"], "'--context'"),
        (["run", "m", "-p", "x", "-ctk", "q8"], "unknown format 'q8'; did you mean 'q8_0'?"),
        (["run", "m", "-p", "x", "--max-tokens", "many"], "'many' is not a valid integer"),
        (["run", "m", "-p", "x", "--max-tokens", "0"], "max_tokens is 0; it must be"),
        (["run", "m", "-p", "x", "--recent", "-1"], "recent is -1"),
        (["run", "m", "-p", "x", "--dtype", "int8"], "float32"),
        (["run", "smollm2-135", "-p", "x"], "did you mean 'smollm2-135m'?"),
        (["info"], "Missing argument 'MODEL'"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(octavo: Octavo, arguments: list[str], hint: str) -> None:
    wrong = octavo(*arguments)
    assert wrong.status == 2 and wrong.out == ""
    assert wrong.err.startswith("octavo: error: ") and wrong.err.count("\n") == 1
    assert hint in wrong.err


@pytest.mark.parametrize(
    "error", [PoolFull("no page; 3 of 3 held"), OctavoError("one\n  line"), ZeroDivisionError("oh")]
)
def test_failed_work_is_status_1(octavo: Octavo, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(document: object) -> None:
        raise error

    monkeypatch.setattr(formats, "emit", fail)
    failed = octavo("formats", "--json")
    assert failed.status == 1 and failed.err.count("\n") == 1
    assert " ".join(str(error).split()) in failed.err
    assert "Traceback" in octavo("--debug", "formats", "--json").err


def test_ctrl_c_is_status_130(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(document: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(formats, "emit", press)
    assert octavo("formats", "--json").status == 130


def test_a_reader_that_leaves_is_no_news() -> None:
    command = f"{sys.executable} -m octavo.cli formats | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.startswith("format")


def test_formats_and_models_as_json(octavo: Octavo) -> None:
    found = {f["name"]: f for f in octavo("formats", "--json", "--head-dim", "64").json["formats"]}
    assert found["q8_0"]["bits_per_value"] == 8.5 and found["f16"]["page_bytes"] == 64 * 64 * 2
    assert {m["name"] for m in octavo("models", "--json").json["models"]} == {"smollm2-135m", "gemma3-270m"}
    assert "q4_0" in octavo("formats").out and "smollm2-135m" in octavo("models").out
