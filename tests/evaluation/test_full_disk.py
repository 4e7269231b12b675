"""A disk that fills while a run writes: the error says what to do, and nothing measured is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from octavo.errors import InvalidFile
from octavo.evaluation.base import BaseWriter
from octavo.evaluation.log import SampleLog, Scored
from octavo.evaluation.plots import Plot
from octavo.evaluation.report import Report
from octavo.evaluation.rows import RowFile

ALWAYS_FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not ALWAYS_FULL.is_char_device(), reason="/dev/full is Linux's")


@contextmanager
def refused(path: Path, *, at: Path) -> Iterator[None]:
    """Writing at `at` finds no space left, which is told of `path`; what was there comes back."""
    aside = at.with_name("aside")
    if at.exists():
        at.rename(aside)
    at.symlink_to(ALWAYS_FULL)
    with pytest.raises(InvalidFile) as caught:
        yield
    told = f"{path} cannot be written: No space left on device; see to that and run the same command again"
    assert str(caught.value).startswith(told)
    at.unlink(missing_ok=True)
    if aside.exists():
        aside.rename(at)


def test_answers_are_kept(tmp_path: Path) -> None:
    path, first, second = tmp_path / "log", *(Scored(key, "ok", 1.0, key, None, {}) for key in "ab")
    log = SampleLog(path, {"run": 1})
    log.add(first)
    with refused(path, at=path):
        log.add(second)
    with refused(path, at=tmp_path / "log.part"):
        SampleLog(path, {"run": 1})
    assert SampleLog(path, {"run": 1}).done == {"a": first}


def test_windows_of_a_base_are_kept(tmp_path: Path) -> None:
    def writer() -> BaseWriter:
        return BaseWriter(tmp_path / "base", {"run": "1"}, 3, 4, 2, torch.float32)

    window = torch.ones(4, 2), torch.ones(3), torch.ones(4)
    begun = writer()
    begun.add(*window)
    with refused(tmp_path / "base", at=tmp_path / "base.part"):
        begun.add(*window)
    with refused(tmp_path / "base.part.json", at=tmp_path / "base.part.json.part"):
        begun.add(*window)
    assert writer().done == 1
    (tmp_path / "base.part.json").unlink()
    with refused(tmp_path / "base", at=tmp_path / "base.part"):
        writer()


def test_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **settings: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    path = tmp_path / "row"
    window = {"kld": torch.ones(4), "same_top": torch.ones(4, dtype=torch.bool), "nll": torch.ones(3)}
    with RowFile(path, {"run": "1"}) as row:
        row.add(**window)
    monkeypatch.setattr("octavo.evaluation.rows.save_file", full)
    with (
        pytest.raises(InvalidFile, match=r"row cannot be written: .*No space left on device .*; see to that"),
        row,
    ):
        row.add(**window)
    assert RowFile(path, {"run": "1"}).done == 1


@pytest.mark.parametrize("name", ["report.json", "report.md", "index.html", "p.png", "p.svg"])
def test_a_report_is_not_cut_short(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    plot = Plot("p", "Plot", "x", "y", {"a": [(1.0, 2.0, 1.0, 3.0)]})
    Report("ruler", "before", {}, {}, plots=[plot]).write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    at = tmp_path / (name if name.startswith("p.") else f"{name}.part")
    with refused(tmp_path / name, at=at):
        Report("ruler", "after", {}, {}, plots=[plot]).write(tmp_path)
    assert (tmp_path / name).read_bytes() == before[name]
