"""The command line in-process, on a tiny model in a folder."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from tests.tiny import byte_tokenizer, tiny

TEXT = "".join(f"Room {n} of the old house keeps {n * n} blue bottles. " for n in range(40))
"""Some 1,800 bytes, so as many tokens for a byte tokenizer."""


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of stdout."""
        return loads(self.out.splitlines()[-1])


Octavo = Callable[..., Result]


def save(folder: Path, *, chat: bool) -> str:
    tiny("llama").save_pretrained(folder)
    byte_tokenizer(chat).save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, even where tests are started in the background and inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny random chat model."""
    return save(tmp_path_factory.mktemp("models") / "tiny-chat", chat=True)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model without a chat template."""
    return save(tmp_path_factory.mktemp("models") / "tiny-base", chat=False)


@pytest.fixture(scope="session")
def document(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("documents") / "house.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture
def octavo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Octavo:
    """Run the command line: octavo("run", model, stdin=b"...")."""

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run
