"""Scored samples in a file, one a line: every completion is kept, and an interrupted run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.errors import InvalidFile
from octavo.evaluation.answers import Answer, Answerer, Question
from octavo.evaluation.files import ODD, write_text, writing

__all__ = ["Item", "SampleLog", "Scored", "answer_all"]


@dataclass(frozen=True)
class Item:
    """One sample to be asked: its key in the log, the question, its score, and what to keep beside it."""

    key: str
    question: Question
    score: Callable[[str], float]
    keep: Mapping[str, Any]


@dataclass(frozen=True)
class Scored:
    """An answered sample. `score` is in [0, 1]; None where the answer is empty, late or an error."""

    key: str
    status: str
    score: float | None
    completion: str
    error: str | None
    keep: Mapping[str, Any]


class SampleLog:
    """Lines of `Scored` at `path`, behind a first line that says what they belong to.

    Errors and time-outs are not taken over: they are asked again. Raises InvalidFile for another run's log.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._head = json.dumps(dict(identity), sort_keys=True)
        self.done = {s.key: s for s in self._read() if s.status in ("ok", "empty")}
        lines = [self._head, *(_line(s) for s in self.done.values())]
        write_text(path, "".join(f"{line}\n" for line in lines))

    def add(self, scored: Scored) -> None:
        """Append one sample; it is on disk when this returns. Raises InvalidFile on a full one."""
        self.done[scored.key] = scored
        with writing(self._path), self._path.open("a", encoding="utf-8", errors=ODD) as file:
            file.write(_line(scored) + "\n")

    @property
    def unanswered(self) -> str | None:
        """Why no figure may be drawn from it: nothing was answered. Else None."""
        failed = [s for s in self.done.values() if s.status not in ("ok", "empty")]
        if not failed or len(failed) < len(self.done):
            return None
        return f"none of {len(failed)} prompts was answered; the first time: {failed[0].error}"

    def _read(self) -> Iterator[Scored]:
        if not self._path.exists():
            return
        head, *lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        if head != self._head:
            raise InvalidFile(
                f"{self._path} holds samples of another run ({self._told(head)}); take another --out"
            )
        for line in lines:
            try:
                yield Scored(**json.loads(line))
            except (ValueError, TypeError):
                return  # the run was cut off while writing this line

    def _told(self, head: str) -> str:
        """What the log's first line says otherwise than this run."""
        try:
            theirs, ours = json.loads(head), json.loads(self._head)
            names = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
        except (ValueError, AttributeError):
            return "its first line is damaged"
        if names == ["recipe"]:
            names = [n for n in ours["recipe"] if theirs["recipe"].get(n) != ours["recipe"][n]]
            return ", ".join(f"{n} {theirs['recipe'].get(n)}, now {ours['recipe'][n]}" for n in names)
        return ", ".join(f"another {name}" for name in names)


def _line(scored: Scored) -> str:
    return json.dumps(asdict(scored), ensure_ascii=False)


def answer_all(
    answerer: Answerer, items: Sequence[Item], log: SampleLog, progress: Callable[[int, int], None]
) -> list[Scored]:
    """All items answered and scored, in their order; those in the log are not asked again."""
    missing = [item for item in items if item.key not in log.done]
    done = len(items) - len(missing)
    answers = answerer.answers(item.question for item in missing)
    for item, answer in zip(missing, answers, strict=True):
        log.add(_scored(item, answer))
        done += 1
        progress(done, len(items))
    return [log.done[item.key] for item in items]


def _scored(item: Item, answer: Answer) -> Scored:
    score = item.score(answer.text) if answer.status == "ok" else None
    return Scored(item.key, answer.status, score, answer.text, answer.error, item.keep)
