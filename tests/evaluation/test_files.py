"""A byte order mark at the start of a user's file changes nothing that is measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest

from octavo.cli.eval_types import TEXT
from octavo.errors import InvalidFile
from octavo.evaluation.identity import file_sha256
from octavo.evaluation.mrcr import read_mrcr
from octavo.evaluation.ruler import Sources, get_tasks
from octavo.evaluation.ruler.niah import Niah
from octavo.evaluation.ruler.qa import read_hotpotqa, read_squad
from octavo.evaluation.windows import read_text
from octavo.model.tokenizer import Tokenizer
from tests.evaluation.words import WordTokenizer
from tests.tiny import byte_tokenizer

BYTES = Tokenizer(byte_tokenizer(False), eos_ids=(257,))


def both(folder: Path, text: str) -> tuple[Path, Path]:
    """The same text without a mark and with one, under the same name."""
    for name, encoding in (("bare", "utf-8"), ("marked", "utf-8-sig")):
        (folder / name).mkdir()
        (folder / name / "file.jsonl").write_text(text, encoding=encoding)
    return folder / "bare" / "file.jsonl", folder / "marked" / "file.jsonl"


def test_evaluation_texts_are_the_same_text(tmp_path: Path) -> None:
    bare, marked = (read_text(path, BYTES) for path in both(tmp_path, "Grüße"))
    assert bare == marked and bytes(marked.tokens).decode() == "Grüße"
    assert bare.sha256 == file_sha256(tmp_path / "bare" / "file.jsonl")


def test_essays_begin_with_the_same_word(tmp_path: Path) -> None:
    found = []
    for path in both(tmp_path, "Water runs. Stones stay. " * 60):
        [task] = get_tasks(["niah_single_2"], Sources(essay=path), len)
        assert isinstance(task, Niah) and task._essay is not None
        found.append(task._essay.words)
    assert found[0] == found[1] and found[1][0] == "Water"


def test_data_sets_are_the_same_rows(tmp_path: Path) -> None:
    paragraph = {"context": "A boat.", "qas": [{"question": "What?", "answers": [{"text": "boat"}]}]}
    hotpot = {"question": "What?", "answer": "boat", "context": [["Boats", ["A boat."]]]}
    mrcr = {
        "prompt": '[{"role": "user", "content": "Hello"}]',
        "answer": "x",
        "random_string_to_prepend": "y",
        "n_needles": 2,
    }
    for n, (read, data) in enumerate(
        [
            (read_squad, {"data": [{"paragraphs": [paragraph]}]}),
            (read_hotpotqa, [hotpot]),
            (lambda path: read_mrcr(path, WordTokenizer()), mrcr),
        ]
    ):
        (tmp_path / str(n)).mkdir()
        bare, marked = both(tmp_path / str(n), json.dumps(data) + "\n")
        assert read(bare) == read(marked)
        assert file_sha256(bare) == file_sha256(marked)


def test_a_place_is_counted_in_the_file_with_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"\xef\xbb\xbfcaf\xe9 au lait")
    with pytest.raises(InvalidFile, match="is not UTF-8: byte 6 of 15 is 0xe9"):
        read_text(path, BYTES)


@pytest.mark.parametrize(
    ("data", "fact"),
    [(b"\xef\xbb\xbf", "is empty: 3 bytes"), (b" \n", "is empty: 2 bytes"), (b"a\0b", "byte 1 of 3 is NUL")],
)
def test_what_is_not_text_is_not_measured(tmp_path: Path, data: bytes, fact: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=fact):
        read_text(path, BYTES)


@contextmanager
def piped(folder: Path, text: str) -> Iterator[Path]:
    """A pipe that gives `text` once, as `<(command)` in a shell."""
    path = folder / "pipe"
    os.mkfifo(path)

    def write() -> None:
        with suppress(BrokenPipeError):  # nobody reads on
            path.write_text(text)

    writer = Thread(target=write, daemon=True)
    writer.start()
    yield path
    writer.join(10)


def test_a_text_may_come_through_a_pipe(tmp_path: Path) -> None:
    with piped(tmp_path, "Once.") as path:
        assert TEXT.convert(str(path), None, None) == path
        reader, end, found = os.open(path, os.O_RDONLY | os.O_NONBLOCK), monotonic() + 5, b""
        while not found and monotonic() < end:
            with suppress(BlockingIOError):  # nothing yet
                found = os.read(reader, 100)
        os.close(reader)
    assert found == b"Once."


def test_what_is_hashed_is_no_pipe(tmp_path: Path) -> None:
    with piped(tmp_path, "Once.") as path:
        with pytest.raises(InvalidFile, match="pipe is no regular file"):
            file_sha256(path)
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
