"""MRCR: grading, bins, reading the user's file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import InvalidFile, InvalidRequest
from octavo.evaluation.answers import Answer, Question
from octavo.evaluation.log import SampleLog
from octavo.evaluation.mrcr import BINS, MrcrRow, bin_of, grade, read_mrcr, run_mrcr
from tests.evaluation.words import WordTokenizer


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("aYooSG8CQgA poem", "aYooSG8CQgA poem", 1.0),
        ("A poem", "aYooSG8CQgA poem", 0.0),  # no prefix: 0, however alike
        (" aYooSG8CQgA poem", "aYooSG8CQgA poem", 0.0),  # not even a space before it
        ("aYooSG8CQg", "aYooSG8CQgA poem", 0.0),
        ("aYooSG8CQgabcd", "aYooSG8CQgbcde", 0.75),  # 2·3 ÷ 8, the prefix counts in neither
        ("aYooSG8CQg", "aYooSG8CQg", 1.0),
    ],
)
def test_grade_is_the_published_one(response: str, answer: str, score: float) -> None:
    assert grade(response, answer, "aYooSG8CQg") == score


def test_bins() -> None:
    assert len(BINS) == 8 and BINS[-1] == 1_048_576
    assert [bin_of(n) for n in (4095, 4096, 8192, 8193, 1_048_576, 1_048_577)] == [
        None,
        "4096-8192",
        "4096-8192",
        "8192-16384",
        "524288-1048576",
        None,
    ]


class Echo:
    """Answers with the wanted prefix and text for some rows, and fails for others."""

    def answers(self, questions: Iterator[Question]) -> Iterator[Answer]:
        for n, question in enumerate(questions):
            assert question.max_tokens > 64
            yield (Answer.of("PREpoem two"), Answer.of(""), Answer.failed("late", "timeout"))[n % 3]


def rows(count: int) -> list[dict[str, object]]:
    filler = "some words to read " * 1100
    messages = [{"role": "user", "content": filler}, {"role": "user", "content": "Prepend PRE to poem 2."}]
    row = {"answer": "PREpoem two", "random_string_to_prepend": "PRE", "n_needles": 2}
    return [{**row, "prompt": json.dumps(messages)} for _ in range(count)]


def test_rows_are_scored_by_needles_and_bin(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    short = {**rows(1)[0], "prompt": json.dumps([{"role": "user", "content": "short"}])}
    data.write_text("\n".join(json.dumps(row) for row in [*rows(3), short]) + "\n")
    found = read_mrcr(data, WordTokenizer())
    assert [row.needles for row in found] == [2] * 4 and found[3].tokens < 4096 < found[0].tokens
    log = SampleLog(tmp_path / "log.jsonl", {"run": 1})
    [row] = run_mrcr(found, Echo(), log, "echo", context=20_000, progress=lambda done, total: None)
    wanted = {
        "needles": 2,
        "bin": bin_of(found[0].tokens),
        "score": 1.0,
        "n": 3,
        "scored": 1,
        "empty": 1,
        "timeouts": 1,
        "left_out": 1,
    }
    assert {name: row[name] for name in wanted} == wanted


def test_parquet_is_read_too(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows(2)), tmp_path / "rows.parquet")
    assert len(read_mrcr(tmp_path / "rows.parquet", WordTokenizer())) == 2


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "no.jsonl").write_text('{"prompt": "[]"}\n')
    with pytest.raises(InvalidFile, match="needs the columns prompt, answer"):
        read_mrcr(tmp_path / "no.jsonl", WordTokenizer())


def test_a_file_without_a_fitting_conversation_is_refused(tmp_path: Path) -> None:
    row = MrcrRow(0, ({"role": "user", "content": "x"},), "answer", "prefix", 2, 300, 3)
    log = SampleLog(tmp_path / "log", {})
    with pytest.raises(InvalidRequest, match=r"none of 1 conversations \(of 300 to 300 tokens\) lies within"):
        run_mrcr([row], Echo(), log, "echo", context=20_000, progress=lambda done, total: None)
