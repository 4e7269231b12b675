"""Converted folders appear whole or not at all."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octavo.errors import InvalidRequest
from octavo.model import cache as module
from octavo.model.cache import cache_folder, cached, file_key, is_cached


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "models"))
    return tmp_path / "models"


def test_makers_at_the_same_time_make_once() -> None:
    calls: list[Path] = []
    gate = threading.Barrier(4)

    def make(folder: Path) -> None:
        calls.append(folder)
        time.sleep(0.1)  # long enough for the others to arrive
        (folder / "config.json").write_text("{}")

    def ask() -> Path:
        gate.wait()
        return cached("m", make)

    with ThreadPoolExecutor(4) as pool:
        found = {f.result() for f in [pool.submit(ask) for _ in range(4)]}
    assert found == {cache_folder() / "m"}
    assert len(calls) == 1


def test_a_failure_leaves_nothing(folder: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached("m", fail)
    assert not is_cached("m")
    assert [p.name for p in folder.iterdir() if p.is_dir()] == []
    cached("m", lambda f: None)
    assert is_cached("m")


def test_what_a_killed_maker_left_is_cleared(folder: Path) -> None:
    (folder / "m.partial-dead").mkdir(parents=True)
    (folder / "mm.partial-other").mkdir()
    cached("m", lambda f: None)
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["m", "mm.partial-other"]


def test_another_version_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cached("m", lambda f: None)
    monkeypatch.setattr(module, "VERSION", "next")
    assert not is_cached("m")
    again = cached("m", lambda f: (f / "new").touch())
    assert (again / "new").exists()


def test_no_place_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(InvalidRequest, match="set OCTAVO_CACHE"):
        cached("m", lambda f: None)


def test_file_keys_tell_contents_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b" / "a.gguf"
    second.parent.mkdir()
    first.write_bytes(bytes(3_000_000))
    second.write_bytes(bytes(2_999_999) + b"x")
    assert file_key(first).startswith("a-")
    assert file_key(first) != file_key(second)
