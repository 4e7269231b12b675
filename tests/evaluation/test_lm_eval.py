"""The lm-eval adapter against computations by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from octavo.engine.engine import Engine
from octavo.engine.requests import Sampling
from octavo.errors import UnknownName
from octavo.evaluation.setup import Bench
from octavo.recipe import Recipe
from tests.engine.helpers import rows_of_passes
from tests.evaluation.bench import loaded

if TYPE_CHECKING:
    from octavo.evaluation.lm_eval import OctavoLM

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@dataclass
class Request:
    """What the harness hands over, as far as it is read."""

    args: tuple[Any, ...]


@pytest.fixture
def engine() -> Iterator[Engine]:
    bench = Bench(loaded())
    with bench.engine(Recipe.from_pair("plain"), tokens=1024, sequences=4) as engine:
        yield engine


@pytest.fixture
def lm(engine: Engine) -> OctavoLM:
    from octavo.evaluation.lm_eval import OctavoLM

    return OctavoLM(engine=engine)


def logprobs(tokens: list[int]) -> torch.Tensor:
    """Log-probabilities [n, V] in float64 by Transformers alone."""
    from tests.tiny import tiny

    model = tiny("llama", 2)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(2.0)
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.double().log_softmax(-1)


def by_hand(context: str, continuation: str) -> tuple[float, bool]:
    """The harness moves the context's last spaces to the continuation."""
    stem = context.rstrip()
    context, continuation = stem, context[len(stem) :] + continuation
    tokens = [*context.encode(), *continuation.encode()]
    first = len(context.encode()) - 1
    rows, wanted = logprobs(tokens)[first:-1], torch.tensor(tokens[first + 1 :])
    return float(rows.gather(-1, wanted[:, None]).sum()), bool((rows.argmax(-1) == wanted).all())


START = 257  # EOS: this tokenizer puts no BOS before a text
CONTEXT = "The engine keeps pages of sixty-four tokens, packs them once and never unpacks them again. " * 2


def test_loglikelihood_in_order_and_with_shared_prefixes(lm: OctavoLM, engine: Engine) -> None:
    asked = [(CONTEXT, " yes"), ("Short", " no"), (CONTEXT, " no, never"), (CONTEXT[:100], "x")]
    found = lm.loglikelihood([Request(pair) for pair in asked], disable_tqdm=True)
    for pair, (value, greedy) in zip(asked, found, strict=True):
        wanted, same = by_hand(*pair)
        assert value == pytest.approx(wanted, abs=2e-3) and greedy == same


def test_shared_prefixes_are_computed_once(lm: OctavoLM, engine: Engine) -> None:
    rows = rows_of_passes(engine)
    lm.loglikelihood([Request((CONTEXT, f" {n}")) for n in range(4)], disable_tqdm=True)
    once = len(CONTEXT.rstrip()) + 2
    assert sum(rows) < once + 3 * 66  # the others compute their last, incomplete page only


def test_a_greedy_continuation_is_told(lm: OctavoLM, engine: Engine) -> None:
    said = engine.generate([list(b"Once")], Sampling(max_tokens=3, ignore_eos=True))[0].tokens
    assert lm._loglikelihood_tokens([(("", ""), list(b"Once"), list(said))])[0][1]
    other = [*said[:2], (said[2] + 1) % 250]
    assert not lm._loglikelihood_tokens([(("", ""), list(b"Once"), other)])[0][1]


def test_an_empty_context_is_the_prefix_token(lm: OctavoLM) -> None:
    [(value, _)] = lm.loglikelihood([Request(("", "abc"))], disable_tqdm=True)
    assert lm.prefix_token_id == START
    rows = logprobs([START, *b"abc"])
    assert value == pytest.approx(float(sum(rows[n, c] for n, c in enumerate(b"abc"))), abs=1e-3)


def test_rolling_covers_a_text_longer_than_the_context() -> None:
    from octavo.evaluation.lm_eval import OctavoLM

    with Engine(loaded(), Recipe.from_pair("plain"), memory="8MB", context=40) as engine:
        text = CONTEXT[:95]
        [value] = OctavoLM(engine=engine).loglikelihood_rolling([Request((text,))])
    tokens = [START, *text.encode()]
    total = 0.0
    # Windows of 40 predictions; the last one keeps a full context of 40 before its predictions end.
    for start, first, stop in ((0, 1, 41), (40, 41, 81), (55, 81, 96)):
        rows = logprobs(tokens[start : stop - 1])
        total += sum(float(rows[at - 1 - start, tokens[at]]) for at in range(first, stop))
    assert value == pytest.approx(total, abs=5e-3)


def test_generate_until_stops_where_it_should(lm: OctavoLM, engine: Engine) -> None:
    free = engine.generate([list(b"Once upon")], Sampling(max_tokens=12))[0].text
    cut = free[len(free) // 2]
    asked = [("Once upon", {"until": [cut], "max_gen_toks": 12}), ("Once upon", {"max_gen_toks": 12})]
    short, long = lm.generate_until([Request(pair) for pair in asked])
    assert long == free and short == free.split(cut)[0] and len(short) < len(long)
    with pytest.raises(UnknownName, match="top_p"):
        lm.generate_until([Request(("Once", {"topp": 0.5}))])


def test_arguments_are_checked() -> None:
    from octavo.evaluation.lm_eval import OctavoLM

    with pytest.raises(UnknownName, match="exact_pages"):
        OctavoLM("tiny", exact_page=1)


def test_it_is_registered_and_runs_a_task(lm: OctavoLM, tmp_path: Any) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    from octavo.evaluation.lm_eval import OctavoLM

    assert get_model("octavo") is OctavoLM and get_model("dummy") is not OctavoLM
    rows = "\n".join(json.dumps({"q": f"Is {n} even? ", "a": n % 2}) for n in range(4))
    (tmp_path / "rows.jsonl").write_text(rows + "\n")
    task = {
        "task": "parity",
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(tmp_path / "rows.jsonl")},
            "cache_dir": str(tmp_path / "cache"),
        },
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": ["yes", "no"],
        "doc_to_target": "a",
        "metric_list": [{"metric": "acc"}],
    }
    found = simple_evaluate(
        model=lm, tasks=[task], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0
    )
    best = [by_hand(f"Is {n} even?", " yes")[0] >= by_hand(f"Is {n} even?", " no")[0] for n in range(4)]
    right = [(0 if yes else 1) == n % 2 for n, yes in enumerate(best)]
    assert found["results"]["parity"]["acc,none"] == pytest.approx(sum(right) / 4)


def test_a_continuation_over_several_chunks_counts_whole(lm: OctavoLM) -> None:
    """Greedy only if it is in all of them."""
    [(value, greedy)] = lm.loglikelihood([Request(("Once", f" {CONTEXT}"))], disable_tqdm=True)
    wanted, same = by_hand("Once", f" {CONTEXT}")
    assert len(CONTEXT) > 2 * 64 and value == pytest.approx(wanted, abs=2e-2) and greedy == same
