"""The thirteen tasks by name, and what each needs from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import InvalidFile, InvalidRequest, unknown
from octavo.evaluation.files import read_text
from octavo.evaluation.ruler.aggregate import CommonWords, FrequentWords
from octavo.evaluation.ruler.niah import Essay, Niah, NiahShape
from octavo.evaluation.ruler.qa import QuestionAnswering, read_hotpotqa, read_squad
from octavo.evaluation.ruler.task import Task
from octavo.evaluation.ruler.vt import VariableTracking

__all__ = ["TASK_NAMES", "Sources", "get_tasks"]

_NIAH = {
    "niah_single_1": NiahShape("noise"),
    "niah_single_2": NiahShape("essay"),
    "niah_single_3": NiahShape("essay", value_kind="uuids"),
    "niah_multikey_1": NiahShape("essay", keys=4),
    "niah_multikey_2": NiahShape("needle"),
    "niah_multikey_3": NiahShape("needle", key_kind="uuids", value_kind="uuids"),
    "niah_multivalue": NiahShape("essay", values=4),
    "niah_multiquery": NiahShape("essay", queries=4),
}
TASK_NAMES: tuple[str, ...] = (*_NIAH, "vt", "cwe", "fwe", "qa_1", "qa_2")


@dataclass(frozen=True)
class Sources:
    """The user's own files: long prose for the essay haystacks, SQuAD 2.0 (qa_1) and HotpotQA (qa_2)."""

    essay: Path | None = None
    squad: Path | None = None
    hotpotqa: Path | None = None


def get_tasks(names: Sequence[str], sources: Sources, count_tokens: Callable[[str], int]) -> list[Task]:
    """The tasks of `names`; one whose file is missing is refused, never skipped.

    count_tokens    length of a text in the model's tokenizer
    """
    return [_task(name, sources, count_tokens) for name in names]


def _task(name: str, sources: Sources, count_tokens: Callable[[str], int]) -> Task:
    if name in _NIAH:
        shape = _NIAH[name]
        return Niah(name, shape, _essay(name, sources.essay) if shape.haystack == "essay" else None)
    if name == "qa_1":
        return QuestionAnswering(name, read_squad(_needed(name, sources.squad, "--squad")))
    if name == "qa_2":
        return QuestionAnswering(name, read_hotpotqa(_needed(name, sources.hotpotqa, "--hotpotqa")))
    plain: dict[str, Callable[[], Task]] = {
        "vt": lambda: VariableTracking(VariableTracking.example_lines(count_tokens)),
        "cwe": CommonWords,
        "fwe": FrequentWords,
    }
    if name not in plain:
        raise unknown("RULER task", name, TASK_NAMES)
    return plain[name]()


def _needed(task: str, path: Path | None, option: str) -> Path:
    if path is None:
        raise InvalidRequest(f"task {task} needs your own data file; name it with {option} FILE")
    return path


def _essay(task: str, path: Path | None) -> Essay:
    source = _needed(task, path, "--essay")
    essay = Essay(read_text(source))
    if len(essay.words) < 200:
        raise InvalidFile(f"{source} has {len(essay.words)} words; a haystack needs prose of 200 or more")
    return essay
