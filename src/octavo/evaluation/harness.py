"""A run of lm-evaluation-harness as rows and measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.engine.engine import Engine
from octavo.evaluation.measures import Measure, measure_of

__all__ = ["HarnessRun"]


@dataclass(frozen=True)
class HarnessRun:
    """What `lm_eval run` would be told."""

    tasks: tuple[Any, ...]
    limit: int | None = None
    num_fewshot: int | None = None
    apply_chat_template: bool = False
    include_path: Path | None = None
    defaults: bool = True

    def run(self, engine: Engine, target: str) -> tuple[list[dict[str, Any]], list[Measure]]:
        """A row for each task and metric, and its values sample by sample."""
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        from octavo.evaluation.lm_eval import OctavoLM

        path = str(self.include_path) if self.include_path else None
        found = simple_evaluate(
            model=OctavoLM(engine=engine),
            tasks=list(self.tasks),
            task_manager=TaskManager(include_path=path, include_defaults=self.defaults),
            limit=self.limit,
            num_fewshot=self.num_fewshot,
            apply_chat_template=self.apply_chat_template,
            log_samples=True,
        )
        return list(_rows(found["results"], target)), list(_measures(found.get("samples", {}), target))


def _rows(results: dict[str, dict[str, Any]], target: str) -> Iterator[dict[str, Any]]:
    for task, metrics in results.items():
        for name, value in metrics.items():
            metric, _, filter_name = name.partition(",")
            if not filter_name or metric.endswith("_stderr"):
                continue
            error = metrics.get(f"{metric}_stderr,{filter_name}")
            yield {
                "task": task,
                "target": target,
                "metric": metric,
                "filter": filter_name,
                "value": float(value),
                "stderr": float(error) if isinstance(error, int | float) else None,
            }


def _measures(samples: dict[str, list[dict[str, Any]]], target: str) -> Iterator[Measure]:
    """Of metrics that are a number for each sample; others are aggregates and have no values to compare."""
    for task, rows in samples.items():
        for metric in rows[0].get("metrics", []) if rows else []:
            values = [(str(row["doc_id"]), row.get(metric)) for row in rows]
            numbers = [(name, float(v)) for name, v in values if isinstance(v, int | float)]
            if len(numbers) == len(values):
                yield measure_of(task, target, metric, numbers)
