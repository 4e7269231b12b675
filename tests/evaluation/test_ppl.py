"""Perplexity by position on a tiny model: exact numbers, buckets, and what makes a run mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

import pytest
import torch

from octavo.engine.engine import Engine
from octavo.errors import InvalidRequest
from octavo.evaluation.ppl import PplRow, PplRun, check_agreement, edges, position_nll
from octavo.evaluation.present_ppl import ppl_report
from octavo.evaluation.setup import Bench
from octavo.evaluation.windows import Text, Windows, cut
from octavo.model.load import LoadedModel
from octavo.recipe import Recipe
from tests.evaluation.bench import loaded, said
from tests.tiny import tiny_loaded

TRAINED = 256
PLAIN = Recipe.from_pair("plain", dca_chunk=TRAINED // 2)
SETUP: dict[str, Any] = {"model_name": "tiny", "trained": TRAINED}


def short() -> LoadedModel:
    """The model of these tests, as if trained on fewer tokens."""
    return replace(loaded(), shape=replace(loaded().shape, context=TRAINED))


def windows(ctx: int, count: int = 1) -> Windows:
    return cut(Text("said.txt", "text-0", said() * 3, ()), ctx, tokens=ctx * count)


def run(*recipes: Recipe, modes: tuple[str, ...] = ("off", "on"), **changes: Any) -> PplRun:
    bench = Bench(short())
    fields: dict[str, Any] = {
        "engine": lambda recipe, tokens: bench.engine(recipe, tokens=tokens, chunk=100),
        "recipes": recipes or (PLAIN,),
        "modes": modes,
        "trained": TRAINED,
        "vocab": loaded().shape.vocab,
        "chunk": 100,
    }
    return PplRun(**{**fields, **changes})


def by_hand(recipe: Recipe, tokens: tuple[int, ...]) -> torch.Tensor:
    """−log p of each token but the first."""
    engine = Bench(short()).engine(recipe, tokens=len(tokens), chunk=100)
    logs = engine.head(torch.cat([h for _, h in engine.score(tokens, chunk=100)])).double().log_softmax(-1)
    return -logs[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]


def test_rows_equal_a_computation_by_hand() -> None:
    texts, done = windows(500, 2), []
    q4 = Recipe("q8_0", "q4_0", recent=0, dca_chunk=TRAINED // 2)
    rows = run(PLAIN, q4, progress=lambda what, n, total: done.append((what, n, total))).run(texts)
    assert [(row.recipe.pair, row.recipe.dca, row.dca) for row in rows] == [
        ("plain:plain", "off", False), ("plain:plain", "on", True),
        ("q8_0:q4_0", "off", False), ("q8_0:q4_0", "on", True),
    ]  # fmt: skip
    for row in rows:
        nll = torch.stack([by_hand(row.recipe, tokens) for tokens in texts.rows]).mean(0)
        assert row.ctx == 500 and row.nll.shape == (499,)
        assert float((row.nll - nll).abs().max()) < 1e-5
        assert row.ppl == pytest.approx(exp(float(row.nll.mean())), rel=1e-9)
        assert 0 < row.entropy < log(264)
    assert rows[0].rows == {} and rows[1].rows == {"intra": 1000, "succ": 744, "inter": 488}
    assert len({round(row.ppl, 6) for row in rows}) == 4
    assert done[:2] == [("ctx 500 plain:plain dca off", 1, 2), ("ctx 500 plain:plain dca off", 2, 2)]


def test_a_row_tells_tail_and_buckets() -> None:
    nll = torch.arange(2999, dtype=torch.float64) / 1000
    told = PplRow(3000, PLAIN, True, {"intra": 1}, nll, 1.0).as_row(TRAINED)
    assert (told["ctx"], told["dca"], told["k"], told["v"]) == (3000, "on", "plain", "plain")
    assert told["ppl"] == pytest.approx(exp(1.499)) and told["tail_ppl"] == pytest.approx(exp(2.4865))
    assert [(b["from"], b["to"]) for b in told["buckets"]] == [
        (0, 64), (64, 128), (128, 192), (192, 256), (256, 512), (512, 1024), (1024, 2048), (2048, 2999),
    ]  # fmt: skip
    assert told["buckets"][4]["ppl"] == pytest.approx(exp(0.3835)) and told["bands"] == {"intra": 1}
    assert PplRow(1025, PLAIN, True, {}, nll[:1024], 1.0).as_row(TRAINED)["tail_ppl"] is None


@pytest.mark.parametrize("ctx", [3, 64, 65, 66, 128, 255, 256, 257, 258, 512, 513, 5000])
def test_buckets_tile_a_window(ctx: int) -> None:
    found = edges(ctx, TRAINED)
    assert found[0] == 0 and found[-1] == ctx - 1 and found == sorted(set(found))


def test_within_the_trained_length_both_agree() -> None:
    validity, rows = run().control(windows(TRAINED))
    assert validity.valid, validity.reasons
    off, on = rows
    assert (off.dca, on.dca) == (False, True) and on.rows["succ"] == 128
    assert float((off.nll - on.nll).abs().max()) < 1e-3


@dataclass
class Spoilt:
    """An engine whose predictions under Dual Chunk Attention are flatter."""

    engine: Engine

    def score(self, tokens: Any, *, chunk: int = 64) -> Iterator[tuple[int, torch.Tensor]]:
        return self.engine.score(tokens, chunk=chunk)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.engine.head(hidden) * (0.8 if self.engine.dca else 1.0)

    def stats(self) -> Any:
        return self.engine.stats()

    def close(self) -> None:
        self.engine.close()


def test_a_control_that_disagrees_is_invalid() -> None:
    sound = run()
    spoilt = run(engine=lambda recipe, tokens: Spoilt(sound.engine(recipe, tokens)))  # type: ignore[arg-type]
    validity, rows = spoilt.control(windows(TRAINED))
    assert not validity.valid and "at 256 tokens, within two chunks" in validity.reasons[0]
    report = ppl_report([], rows, validity, SETUP)
    assert list(report.invalid) == list(validity.reasons) and not report.tables
    assert report.results["valid"] is False and "rows" not in report.results


def test_the_gate_is_two_percent() -> None:
    def row(mean: float) -> PplRow:
        return PplRow(256, PLAIN, True, {}, torch.full((255,), mean, dtype=torch.float64), 1.0)

    assert check_agreement(row(2.0), row(2.0199)).valid and check_agreement(row(2.0), row(1.9801)).valid
    assert (
        not check_agreement(row(2.0), row(2.0201)).valid and not check_agreement(row(2.0), row(1.9799)).valid
    )
    assert not check_agreement(row(2.0), row(float("nan"))).valid


def test_a_text_that_nobody_understands_is_invalid() -> None:
    generator = torch.Generator().manual_seed(3)
    noise = Text("noise", "noise", tuple(torch.randint(0, 256, (300,), generator=generator).tolist()), ())
    validity, _ = run().control(cut(noise, TRAINED))
    assert not validity.valid and "perplexity" in " ".join(validity.reasons)


def test_asked_for_and_not_used_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"asked for and not used: 128 tokens .* first chunk"):
        run(modes=("on",)).run(windows(128))
    [row] = run(modes=("on",)).run(windows(129))
    assert row.rows["succ"] == 1
    [small] = run(PLAIN.with_(dca_chunk=64), modes=("on",)).run(windows(128))
    assert small.rows == {"intra": 128, "succ": 64, "inter": 0}


def test_measurements_read_beyond_the_trained_length_by_it_unless_told_not_to() -> None:
    bench = Bench(short())
    assert bench.engine(PLAIN, tokens=TRAINED).dca is None
    assert bench.engine(PLAIN, tokens=TRAINED + 1).dca is not None
    assert bench.engine(PLAIN, tokens=2 * TRAINED, sequences=2).dca is None
    assert bench.engine(PLAIN.with_(dca="off"), tokens=900).dca is None


def test_engines_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Engine] = []
    close = Engine.close
    monkeypatch.setattr(Engine, "close", lambda self: (closed.append(self), close(self))[1])
    run().run(windows(300))
    with pytest.raises(InvalidRequest):
        run(modes=("on",)).run(windows(100))
    assert len(closed) == 3


def test_a_report_has_a_row_for_each_length_and_mode() -> None:
    made = run()
    validity, control = made.control(windows(TRAINED))
    for ctx in (300, 700):
        made.run(windows(ctx))
    report = ppl_report(made.found, control, validity, SETUP)
    assert [(row["ctx"], row["dca"]) for row in report.results["rows"]] == [
        (300, "off"), (300, "on"), (700, "off"), (700, "on"),
    ]  # fmt: skip
    main, positions = report.tables
    assert main.header == ["ctx", "DCA", "K", "V", "PPL", "last 1,024"] and len(main.rows) == 4
    spans = ["0–64", "64–128", "128–192", "192–256", "256–299", "256–512", "512–699"]
    assert positions.header == ["window", *spans]
    assert [cell is None for cell in positions.rows[0]] == [False] * 6 + [True] * 2
    assert positions.rows[3][0] == "700 plain:plain DCA on" and positions.rows[3][5] is None
    assert report.notes[0].startswith("Control, 256 tokens: ") and "256 tokens" in report.notes[1]
    assert "No token of it" not in report.notes[0]
    near = [replace(row, rows={"intra": 9}) for row in control]
    assert (
        ppl_report(made.found, near, validity, SETUP)
        .notes[0]
        .endswith("No token of it left the first chunk.")
    )
    assert set(report.plots[0].series) == {"plain:plain DCA off", "plain:plain DCA on"}


def test_position_nll_does_not_depend_on_steps() -> None:
    engine = Engine(tiny_loaded("llama"), PLAIN.with_(dca="on", dca_chunk=64), memory="16MB")
    tokens = list(said())[:300]
    (a, own), (b, other) = (position_nll(engine, tokens, chunk) for chunk in (300, 37))
    assert (
        a.dtype == torch.float64
        and float((a - b).abs().max()) < 1e-3
        and own == pytest.approx(other, abs=1e-4)
    )
