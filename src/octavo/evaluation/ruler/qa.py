"""Question answering over documents: the user's own copies of SQuAD 2.0 and HotpotQA."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from octavo.errors import InvalidFile
from octavo.evaluation.ruler.task import SEED, Draft, Metric, Task

__all__ = ["Question", "QuestionAnswering", "Questions", "read_hotpotqa", "read_squad"]

_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other "
    "words."
)
_TEMPLATE = (
    _INSTRUCTION
    + "\n\nThe following are given documents.\n\n{context}\n\n"
    + _INSTRUCTION
    + "\n\nQuestion: {query}"
)
_PREFIX = " Answer:"


@dataclass(frozen=True)
class Question:
    """`needed` documents hold the answer; `related` ones come from the same article."""

    text: str
    answers: tuple[str, ...]
    needed: tuple[int, ...]
    related: tuple[int, ...] = ()


@dataclass(frozen=True)
class Questions:
    documents: tuple[str, ...]
    questions: tuple[Question, ...]


class QuestionAnswering(Task):
    """The documents that hold the answer among others."""

    max_tokens = 32
    metric: Metric = "part"

    def __init__(self, name: str, data: Questions) -> None:
        self.name, self._data = name, data
        self.samples = len(data.questions)
        self.min_units = max(len(q.needed) for q in data.questions)

    def draw(self, rng: Random, units: int, index: int, length: int, cut: int = 0) -> Draft:
        question = self._data.questions[index % len(self._data.questions)]
        documents = self._chosen(rng, question, units)
        Random(SEED).shuffle(documents)
        context = "\n\n".join(f"Document {n}:\n{text}" for n, text in enumerate(documents, 1))
        return Draft(_TEMPLATE.format(context=context, query=question.text), _PREFIX, question.answers)

    def _chosen(self, rng: Random, question: Question, count: int) -> list[str]:
        documents, more = self._data.documents, count - len(question.needed)
        if count >= len(documents):
            return list((documents * -(-count // len(documents)))[:count])
        if more <= len(question.related):
            chosen = [*question.needed, *rng.sample(question.related, more)]
        else:
            known = {*question.needed, *question.related}
            others = [n for n in range(len(documents)) if n not in known]
            extra = rng.sample(others, min(len(others), more - len(question.related)))
            chosen = [*question.needed, *question.related, *extra]
        return [documents[n] for n in chosen]


def read_squad(path: str | Path) -> Questions:
    """The answerable questions of a SQuAD 2.0 file (dev-v2.0.json). Raises InvalidFile."""
    return _read(path, "SQuAD 2.0", _squad)


def _squad(data: Any) -> Questions:
    articles = [article["paragraphs"] for article in data["data"]]
    documents = sorted({p["context"] for article in articles for p in article})
    number = {text: n for n, text in enumerate(documents)}
    questions = []
    for article in articles:
        together = [number[p["context"]] for p in article]
        for p in article:
            own = number[p["context"]]
            related = tuple(n for n in together if n != own)
            for q in p["qas"]:
                if not q.get("is_impossible", False):
                    answers = tuple(a["text"] for a in q["answers"])
                    questions.append(Question(q["question"], answers, (own,), related))
    return Questions(tuple(documents), tuple(questions))


def read_hotpotqa(path: str | Path) -> Questions:
    """The questions of a HotpotQA file (hotpot_dev_distractor_v1.json). Raises InvalidFile."""
    return _read(path, "HotpotQA", _hotpotqa)


def _hotpotqa(rows: Any) -> Questions:
    texts = [[f"{title}\n{''.join(parts)}" for title, parts in row["context"]] for row in rows]
    documents = sorted({text for row in texts for text in row})
    number = {text: n for n, text in enumerate(documents)}
    questions = [
        Question(row["question"], (row["answer"],), tuple(number[t] for t in mine))
        for row, mine in zip(rows, texts, strict=True)
    ]
    return Questions(tuple(documents), tuple(questions))


def _read(path: str | Path, kind: str, made: Callable[[Any], Questions]) -> Questions:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path} cannot be read as {kind}: {error}") from error
    try:
        found = made(data)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        told = f"{path} is JSON, but not {kind} ({type(error).__name__}: {error})"
        raise InvalidFile(f"{told}; give the file as it is published") from error
    if not found.questions:
        raise InvalidFile(f"{path} holds no answerable question")
    return found
