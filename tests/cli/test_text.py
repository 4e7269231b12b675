"""Files and pipes that are not text."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.text import read_text
from octavo.errors import InvalidFile
from tests.cli.conftest import Octavo


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"", "is empty: 0 bytes"),
        (b" \n\t", "is empty: 3 bytes"),
        (b"text\0more", "is binary: byte 4 of 9 is NUL"),
        (b"caf\xe9 au lait", "is not UTF-8: byte 3 of 12 is 0xe9"),
    ],
)
def test_what_is_not_text_is_refused(tmp_path: Path, data: bytes, fact: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=fact):
        read_text(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(InvalidFile, match="cannot read"):
            read_text(path)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"\xef\xbb\xbfGr\xc3\xbc\xc3\x9fe")
    assert read_text(path) == "Grüße"


def test_a_bad_document_is_found_before_the_model_loads(octavo: Octavo, tmp_path: Path) -> None:
    refused = octavo("run", "no-such-model", "-p", "x", "--document", str(tmp_path))
    assert refused.status == 2 and "Is a directory" in refused.err


@pytest.mark.parametrize(
    ("arguments", "stdin", "fact"),
    [
        (["-p", ""], b"", "prompt 1 of 1 is empty"),
        (["-p", "a", "-p", " "], b"", "prompt 2 of 2 is empty"),
        ([], b"", "standard input is empty"),
        ([], b"\xff\xfe", "standard input is not UTF-8"),
    ],
)
def test_empty_and_binary_prompts(octavo: Octavo, arguments: list[str], stdin: bytes, fact: str) -> None:
    refused = octavo("run", "no-such-model", *arguments, stdin=stdin)
    assert refused.status == 2 and fact in refused.err
