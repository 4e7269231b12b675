"""RULER on an engine or a server: samples, answers, scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.evaluation.answers import Answerer, Question
from octavo.evaluation.log import Item, SampleLog, Scored, answer_all
from octavo.evaluation.measures import Measure, measure_of
from octavo.evaluation.ruler.fit import Fitter
from octavo.evaluation.ruler.prompt import Prompter
from octavo.evaluation.ruler.score import found_share
from octavo.evaluation.ruler.task import SEED, Sample, Task

__all__ = ["Cell", "RulerRun", "items_of"]


@dataclass(frozen=True)
class Cell:
    """One task at one length. `score` is in percent, over the samples that could be scored."""

    task: str
    length: int
    scored: Sequence[Scored]
    target: str

    @property
    def measure(self) -> Measure:
        """The score in percent, sample by sample."""
        scores = [(s.key, 100 * s.score) for s in self.scored if s.score is not None]
        return measure_of(f"{self.task} {self.length}", self.target, "score (%)", scores)

    def count(self, status: str) -> int:
        """Samples of one status: ok, empty, error, timeout."""
        return sum(s.status == status for s in self.scored)

    def as_row(self) -> dict[str, Any]:
        """One row of the report's table."""
        measure = self.measure
        tokens = [int(s.keep["tokens"]) for s in self.scored]
        return {
            "task": self.task,
            "length": self.length,
            "target": self.target,
            "score": measure.mean,
            "interval": list(measure.interval) if measure.interval else None,
            "n": len(self.scored),
            "scored": self.count("ok"),
            "empty": self.count("empty"),
            "errors": self.count("error"),
            "timeouts": self.count("timeout"),
            "tokens": [min(tokens), max(tokens)],
        }


@dataclass(frozen=True)
class RulerRun:
    """Everything but what answers.

    target    what is measured: a recipe's pair, or a server's model
    """

    tasks: Sequence[Task]
    lengths: Sequence[int]
    samples: int
    prompter: Prompter
    seed: int = SEED
    progress: Callable[[str, int, int], None] = field(default=lambda what, done, total: None)

    def run(self, answerer: Answerer, log: SampleLog, target: str) -> list[Cell]:
        """Every task at every length."""
        wanted = [(task, length) for task in self.tasks for length in self.lengths]
        return [self._cell(answerer, log, target, task, length) for task, length in wanted]

    def check(self) -> None:
        """Draw one sample of each task and length: what cannot be drawn is refused before any work."""
        for task in self.tasks:
            for length in self.lengths:
                list(Fitter(task, self.prompter, length, seed=self.seed).samples(1))

    def _cell(self, answerer: Answerer, log: SampleLog, target: str, task: Task, length: int) -> Cell:
        fitter = Fitter(task, self.prompter, length, seed=self.seed)
        items = items_of(list(fitter.samples(self.samples)))
        name = f"{target} {task.name} {length}"
        scored = answer_all(answerer, items, log, lambda done, total: self.progress(name, done, total))
        return Cell(task.name, length, scored, target)


def items_of(samples: Sequence[Sample]) -> list[Item]:
    """The samples as questions that know how to be scored."""
    return [_item(sample) for sample in samples]


def _item(sample: Sample) -> Item:
    references = sample.draft.references
    return Item(
        f"{sample.task}/{sample.length}/{sample.index}",
        Question(sample.max_tokens, tokens=sample.prompt_tokens),
        lambda text: found_share(text, references, any_of=sample.metric == "part"),
        {"references": list(references), "tokens": sample.tokens, "prefix": sample.draft.prefix},
    )
