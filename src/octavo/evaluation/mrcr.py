"""OpenAI MRCR: return the i-th of several equal requests in a long conversation.

Data, grading and bins: https://huggingface.co/datasets/openai/mrcr. The data set is the user's own file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octavo.errors import InvalidFile, InvalidRequest
from octavo.evaluation.answers import Answerer, Question
from octavo.evaluation.log import Item, SampleLog, Scored, answer_all
from octavo.evaluation.measures import Measure, measure_of
from octavo.evaluation.protocols import TextTokenizer

__all__ = ["BINS", "MrcrRow", "bin_of", "grade", "read_mrcr", "run_mrcr"]

SHORTEST = 4096

BINS: tuple[int, ...] = tuple(4096 * 2**n for n in range(1, 9))
"""Upper ends of the eight length bins in tokens, prompt and answer together; the first starts at 4,096."""

_COLUMNS = ("prompt", "answer", "random_string_to_prepend", "n_needles")


def grade(response: str, answer: str, prefix: str) -> float:
    """0 unless the response starts with `prefix`; else the similarity of what follows it in both."""
    if not response.startswith(prefix):
        return 0.0
    return SequenceMatcher(None, response.removeprefix(prefix), answer.removeprefix(prefix)).ratio()


@dataclass(frozen=True)
class MrcrRow:
    """One conversation. `tokens` counts prompt and answer in the model's tokenizer."""

    index: int
    messages: tuple[Mapping[str, Any], ...]
    answer: str
    prefix: str
    needles: int
    tokens: int
    answer_tokens: int


def bin_of(tokens: int) -> str | None:
    """The bin's name, such as "8192-16384"; None outside all bins."""
    if not SHORTEST <= tokens <= BINS[-1]:
        return None
    top = next(end for end in BINS if tokens <= end)
    return f"{top // 2}-{top}"


def read_mrcr(path: Path, tokenizer: TextTokenizer) -> list[MrcrRow]:
    """The rows of a parquet or jsonl file as it is published. Raises InvalidFile."""
    try:
        rows = list(_parquet(path) if path.suffix == ".parquet" else _jsonl(path))
        return [_row(n, row, tokenizer) for n, row in enumerate(rows)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidFile(
            f"{path} cannot be read as MRCR ({type(error).__name__}: {error}); it needs the columns "
            + ", ".join(_COLUMNS)
        ) from error


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig") as file:
        yield from (json.loads(line) for line in file if line.strip())


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    if find_spec("pyarrow") is None:
        raise InvalidRequest("reading parquet needs pyarrow; pip install pyarrow, or give the rows as .jsonl")
    parquet: Any = import_module("pyarrow.parquet")  # optional, and without types
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=16):
        yield from batch.to_pylist()


def _row(index: int, row: dict[str, Any], tokenizer: TextTokenizer) -> MrcrRow:
    prompt = row["prompt"]
    messages = tuple(json.loads(prompt) if isinstance(prompt, str) else prompt)
    answer = str(row["answer"])
    length = len(tokenizer.encode(answer, special=False))
    total = len(tokenizer.chat(messages)) + length
    prefix = str(row["random_string_to_prepend"])
    return MrcrRow(index, messages, answer, prefix, int(row["n_needles"]), total, length)


def run_mrcr(
    rows: Sequence[MrcrRow],
    answerer: Answerer,
    log: SampleLog,
    target: str,
    *,
    context: int,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """One table row for each number of needles and bin that has samples.

    Rows of different bins are different conversations: they are no curve over length. Rows that exceed
    `context` or lie outside the bins are counted under "left_out", not scored.
    """
    binned = [row for row in rows if bin_of(row.tokens) and row.tokens + _slack(row) <= context]
    if not binned:
        lengths = sorted(row.tokens for row in rows)
        told = f" (of {lengths[0]:,} to {lengths[-1]:,} tokens)" if lengths else ""
        raise InvalidRequest(
            f"none of {len(rows)} conversations{told} lies within the bins, which begin at {SHORTEST:,}, and "
            f"leaves room for an answer in {context:,} tokens; give others, or raise --max-length"
        )
    scored = answer_all(answerer, [_item(row) for row in binned], log, progress)
    cells: dict[tuple[int, str], list[Scored]] = {}
    together = sorted(zip(binned, scored, strict=True), key=lambda pair: (pair[0].needles, pair[0].tokens))
    for row, answer in together:
        cells.setdefault((row.needles, bin_of(row.tokens) or ""), []).append(answer)
    left_out = len(rows) - len(binned)
    return [_table_row(key, cell, target, left_out) for key, cell in cells.items()]


def _slack(row: MrcrRow) -> int:
    """Tokens an answer may be longer than the wanted one."""
    return 64 + row.answer_tokens // 4


def _item(row: MrcrRow) -> Item:
    question = Question(row.answer_tokens + _slack(row), messages=row.messages)
    keep = {"needles": row.needles, "bin": bin_of(row.tokens), "tokens": row.tokens}
    return Item(f"mrcr/{row.index}", question, lambda text: grade(text, row.answer, row.prefix), keep)


def _table_row(key: tuple[int, str], cell: list[Scored], target: str, left_out: int) -> dict[str, Any]:
    measure = cell_measure(key, cell, target)
    return {
        "needles": key[0],
        "bin": key[1],
        "target": target,
        "score": measure.mean,
        "interval": list(measure.interval) if measure.interval else None,
        "n": len(cell),
        "scored": sum(s.status == "ok" for s in cell),
        "empty": sum(s.status == "empty" for s in cell),
        "errors": sum(s.status == "error" for s in cell),
        "timeouts": sum(s.status == "timeout" for s in cell),
        "left_out": left_out,
        "measure": measure.as_dict(),
    }


def cell_measure(key: tuple[int, str], cell: Sequence[Scored], target: str) -> Measure:
    """The scores of one cell, sample by sample."""
    scores = [(s.key, s.score) for s in cell if s.score is not None]
    return measure_of(f"{key[0]} needles {key[1]}", target, "score", scores)
