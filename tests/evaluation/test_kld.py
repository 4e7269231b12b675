"""KLD runs on a tiny model: exactness, order of trust, resumption, bases that do not belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from octavo.errors import InvalidFile, InvalidRequest
from octavo.evaluation.base import FORMAT, check_belongs
from octavo.evaluation.kld import KldRun
from octavo.evaluation.rows import RowFile
from octavo.evaluation.validity import check_control, check_reference
from octavo.evaluation.windows import Text, cut
from octavo.formats.codec import PageCodec
from octavo.recipe import Recipe
from tests.evaluation.bench import kld_run, loaded, windows


@pytest.mark.parametrize("all_quantised", [False, True])
def test_equals_a_float64_computation_by_hand(tmp_path: Path, all_quantised: bool) -> None:
    chunks = {"chunk": 64, "noise_chunk": 128 if all_quantised else 48}
    run = kld_run(tmp_path, "plain,q4_0", all_quantised=all_quantised, **chunks)
    texts = windows()
    result = run.run(texts)
    assert result.validity.valid and result.noise_floor is not None
    assert abs(result.noise_floor["mean_kld"]) < 1e-6 and result.noise_floor["max_kld"] < 1e-6
    plain, q4 = result.rows
    assert plain["mean_kld"] == 0.0 and plain["top1"] == 1.0 and plain["ppl_ratio"] == 1.0
    klds, nlls = by_hand(run, texts.rows)
    assert q4["mean_kld"] == pytest.approx(float(klds.mean()), abs=1e-6)
    assert q4["max_kld"] == pytest.approx(float(klds.max()), abs=1e-5)
    assert q4["median_kld"] == pytest.approx(float(klds.flatten().quantile(0.5)), abs=1e-6)
    assert q4["ppl"] == pytest.approx(float(nlls.mean().exp()), rel=1e-6)
    assert q4["mean_kld"] > 1e-4


def test_windows_side_by_side_give_the_same(tmp_path: Path) -> None:
    texts = windows(ctx=128, count=3)
    alone = kld_run(tmp_path / "alone", "q4_0").run(texts)
    both = kld_run(tmp_path / "both", "q4_0", together=2).run(texts)
    assert both.rows[0]["mean_kld"] == pytest.approx(alone.rows[0]["mean_kld"], rel=1e-4)
    assert both.rows[0]["block_kld"] == pytest.approx(alone.rows[0]["block_kld"], rel=1e-4)


def test_all_quantised_does_not_depend_on_the_chunk(tmp_path: Path) -> None:
    """A page is encoded once: what has been read back is not packed again."""
    found = [
        kld_run(tmp_path / str(chunk), "turbo3", all_quantised=True, chunk=chunk, noise_chunk=64).run(
            windows()
        )
        for chunk in (64, 192)
    ]
    assert found[0].rows[0]["mean_kld"] == pytest.approx(found[1].rows[0]["mean_kld"], rel=1e-4)


def by_hand(run: KldRun, rows: tuple[tuple[int, ...], ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """KLD [windows, ctx] and nll [windows, ctx − 1] of the last recipe, in float64."""
    klds, nlls = [], []
    for row in rows:
        logs = []
        for recipe in (run.recipes[-1].with_(k="plain", v="plain"), run.recipes[-1]):
            engine = run.engine(recipe, run.chunk)
            hidden = torch.cat([part for _, part in engine.score(row, chunk=run.chunk)])
            logs.append(engine.head(hidden).double().log_softmax(-1))
            engine.close()
        p, q = logs
        klds.append((p.exp() * (p - q)).sum(-1))
        nlls.append(-q[:-1].gather(-1, torch.tensor(row[1:])[:, None])[:, 0])
    return torch.stack(klds), torch.stack(nlls)


def test_rows_carry_size_and_shares(tmp_path: Path) -> None:
    [q8, mixed] = kld_run(tmp_path, "q8_0,q8_0:q4_0").run(windows()).rows
    # 64 channels, 2 KV heads, 2 layers; keys also keep their page's mean: 64 + 16 bytes a page and head
    assert q8["bytes_per_token"] == 2 * 2 * (2 * 64 * 34 / 32 + 80 / 64)
    assert q8["bits_per_value"] == pytest.approx(8.5 + 8 * 80 / 64 / 128)
    assert mixed["k"] == "q8_0" and mixed["v"] == "q4_0" and mixed["bits_per_value"] < q8["bits_per_value"]
    assert q8["mean_kld"] < mixed["mean_kld"]
    order = [mixed[name] for name in ("median_kld", "p90_kld", "p99_kld", "max_kld")]
    assert order == sorted(order)


def test_broken_scales_are_invalid_and_nothing_is_tabulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"all_quantised": True, "chunk": 64, "noise_chunk": 128}
    assert kld_run(tmp_path / "sound", **settings).run(windows()).validity.valid
    decode = PageCodec.decode
    monkeypatch.setattr(PageCodec, "decode", lambda *a, **k: decode(*a, **k) * 1.2)
    result = kld_run(tmp_path, **settings).run(windows())
    assert not result.validity.valid and result.control is not None
    assert "q8_0 control" in result.validity.reasons[0]
    assert result.rows == [] and result.noise_floor is None


def test_a_text_that_nobody_understands_is_invalid(tmp_path: Path) -> None:
    flat = loaded(sharpness=0.05)
    generator = torch.Generator().manual_seed(3)
    noise = Text("noise", "noise", tuple(torch.randint(0, 256, (400,), generator=generator).tolist()), ())
    result = kld_run(tmp_path, model=flat).run(cut(noise, 192))
    assert not result.validity.valid and result.control is None and result.rows == []
    assert "entropy" in result.validity.reasons[0]


def test_gates_are_where_they_are_said_to_be() -> None:
    assert check_reference(3.0, 50_000, 20.0).valid
    assert not check_reference(6.6, 50_000, 20.0).valid  # 61 % of log V
    assert not check_reference(3.0, 50_000, 1000.0).valid
    assert not check_reference(float("nan"), 50_000, 20.0).valid
    assert check_control(0.98, 0.02).valid
    assert not check_control(0.979, 0.001).valid
    for dtype, told in (("bfloat16", True), ("float32", False)):
        assert ("try --dtype" in check_control(0.979, 0.001, dtype).reasons[0]) is told
    assert not check_control(0.99, 0.0201).valid
    assert not check_control(0.99, float("nan")).valid


def test_a_base_is_made_once_and_used_again(tmp_path: Path) -> None:
    texts, base = windows(), tmp_path / "base.safetensors"
    first = kld_run(tmp_path / "a", "q4_0").run(texts, base)
    made = base.stat().st_mtime_ns
    started: list[str] = []
    again = kld_run(tmp_path / "b", "q4_0", progress=lambda what, done, total: started.append(what))
    second = again.run(texts, base)
    assert "reference" not in started and base.stat().st_mtime_ns == made
    assert second.rows[0]["mean_kld"] == first.rows[0]["mean_kld"]
    with safe_open(base, framework="pt") as file:
        assert file.get_tensor("hidden").shape == (2, 192, 64)
        assert set(file.keys()) == {"hidden", "nll", "entropy"}


@pytest.mark.parametrize("name", ["model", "tokenizer", "text", "version"])
def test_a_base_of_another_run_is_refused(tmp_path: Path, name: str) -> None:
    texts, base = windows(), tmp_path / "base.safetensors"
    kld_run(tmp_path, "q8_0").run(texts, base)
    other = kld_run(tmp_path)
    other = replace(other, identity={**other.identity, name: "another"})
    with pytest.raises(InvalidRequest, match=rf"{name} is .* there, 'another' here"):
        other.run(texts, base)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"text": "a" * 64, "tokenizer": "b" * 64}, "run: text is 'aaaaaaaaaaaa…' there, 'text-0' here; t"),
        ({"tokenizer": "b" * 64}, "run: tokenizer is 'bbbbbbbbbbbb…' there, 'bytes' here; take"),
        ({"dtype": "bfloat16"}, "run: dtype is 'bfloat16' there, 'float32' here; take"),
        (
            {"model": "x" * 40 + "1" * 20},
            "run: model is '…111111111111…' there, '…222222222222…' here; take",
        ),
    ],
)
def test_a_base_tells_what_really_differs(tmp_path: Path, there: dict[str, str], told: str) -> None:
    """Tokens of another text are others with any tokenizer, so they say nothing about it."""
    here = {"model": "x" * 40 + "2" * 20, "tokenizer": "bytes", "text": "text-0", "dtype": "float32"}
    with pytest.raises(InvalidRequest) as refused:
        check_belongs(tmp_path / "base", {**here, **there, "format": FORMAT}, here)
    assert told in str(refused.value)


def test_a_base_of_another_ctx_or_no_base_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base.safetensors"
    kld_run(tmp_path, "q8_0").run(windows(), base)
    with pytest.raises(InvalidRequest, match="ctx is '192' there, '128' here"):
        kld_run(tmp_path).run(windows(ctx=128), base)
    (tmp_path / "no.safetensors").write_bytes(b"no")
    with pytest.raises(InvalidFile, match="cannot be read as a base"):
        kld_run(tmp_path).run(windows(), tmp_path / "no.safetensors")


class Stopped(Exception):
    pass


@pytest.mark.parametrize("where", ["reference", "q4_0:q4_0"])
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, where: str) -> None:
    """Long before a row that is not interrupted would be saved for the first time."""
    texts = windows(count=3, ctx=128)

    def stop(what: str, done: int, total: int) -> None:
        if what == where and done == 2:
            raise Stopped

    with pytest.raises(Stopped):
        kld_run(tmp_path, "q4_0", progress=stop).run(texts)
    seen: list[tuple[str, int]] = []
    run = kld_run(tmp_path, "q4_0", progress=lambda what, done, total: seen.append((what, done)))
    resumed = run.run(texts)
    assert [done for what, done in seen if what == where] == [3]
    fresh = kld_run(tmp_path / "fresh", "q4_0").run(texts)
    assert resumed.rows[0]["mean_kld"] == fresh.rows[0]["mean_kld"]
    assert resumed.reference == fresh.reference


def test_a_window_that_ctrl_c_cut_in_two_is_measured_again(tmp_path: Path) -> None:
    row = RowFile(tmp_path / "row.safetensors", {"run": "1"})
    whole = {"kld": torch.ones(4), "same_top": torch.ones(4, dtype=torch.bool), "nll": torch.ones(3)}
    with pytest.raises(KeyError), row:
        row.add(**whole)
        row.add(kld=torch.zeros(4))
    again = RowFile(tmp_path / "row.safetensors", {"run": "1"})
    assert again.done == 1
    again.add(**whole)
    assert again.tensors()["kld"].shape == again.tensors()["same_top"].shape == (2, 4)


def test_another_recipe_does_not_take_over_rows(tmp_path: Path) -> None:
    texts = windows()
    rotated = kld_run(tmp_path, "q4_0").run(texts).rows[0]["mean_kld"]
    other = kld_run(tmp_path, "q4_0", rotate=False).run(texts).rows[0]["mean_kld"]
    assert rotated != other


def test_windows_start_as_the_model_wants() -> None:
    text = Text("t", "t", tuple(range(100)), (7,))
    found = cut(text, 33, tokens=70)
    assert found.rows == ((7, *range(32)), (7, *range(32, 64)))
    with pytest.raises(InvalidRequest, match="100 tokens; one window takes 199"):
        cut(text, 200)
    with pytest.raises(InvalidRequest, match="at least 3"):
        cut(text, 2)


def test_the_control_is_the_run_with_q8_0(tmp_path: Path) -> None:
    seen: list[Recipe] = []
    run = kld_run(tmp_path, "q4_0", rotate=False, exact_pages=2)
    make = run.engine

    def watched(recipe: Recipe, chunk: int) -> object:
        seen.append(recipe)
        return make(recipe, chunk)

    replace(run, engine=watched).run(windows(count=1))  # type: ignore[arg-type]
    assert [r.pair for r in seen] == ["plain:plain", "q8_0:q8_0", "plain:plain", "q4_0:q4_0"]
    assert all(not r.rotate and r.exact_pages == 2 and r.recent == 0 for r in seen)


@pytest.mark.parametrize(("chunk", "other"), [(64, 128), (192, 64), (512, 64), (128, 128)])
def test_the_noise_floor_cuts_windows_elsewhere(chunk: int, other: int, tmp_path: Path) -> None:
    """A chunk that holds the whole window, and one still larger, would compare a pass with itself."""
    run = kld_run(tmp_path, all_quantised=True, chunk=chunk, noise_chunk=128)
    steps: list[tuple[str, int]] = []
    engine = run.engine

    def watched(recipe: Recipe, step: int) -> object:
        steps.append((recipe.pair, step))
        return engine(recipe, step)

    replace(run, engine=watched, recipes=run.recipes[:1]).run(windows())  # type: ignore[arg-type]
    assert steps[2] == ("plain:plain", other)
