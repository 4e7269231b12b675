"""RULER (Hsieh et al. 2024, https://arxiv.org/abs/2404.06654): 13 synthetic tasks of any length."""

from octavo.evaluation.ruler.fit import Fitter
from octavo.evaluation.ruler.prompt import Prompter
from octavo.evaluation.ruler.score import string_match_all, string_match_part
from octavo.evaluation.ruler.task import Draft, Sample, Task
from octavo.evaluation.ruler.tasks import TASK_NAMES, Sources, get_tasks

__all__ = [
    "TASK_NAMES",
    "Draft",
    "Fitter",
    "Prompter",
    "Sample",
    "Sources",
    "Task",
    "get_tasks",
    "string_match_all",
    "string_match_part",
]
