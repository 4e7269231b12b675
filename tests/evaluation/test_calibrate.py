"""Calibration: statistics against a dense pass, rules by hand, budgets by search, files from start to end."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from octavo import Engine, Recipe
from octavo.errors import InvalidRequest
from octavo.evaluation.budget import FORMATS, PROBE, Sensitivity, best_uniform, fit_budget, probe_layers
from octavo.evaluation.calibrate import Statistics, choose_scales, collect, ratio
from octavo.evaluation.judge import Judge
from octavo.evaluation.recipes import make_recipe_file, split
from octavo.evaluation.setup import Bench
from octavo.evaluation.sizes import bits_per_value
from octavo.formats.ladder import ladder
from octavo.recipe import RecipeFile
from tests.evaluation.bench import loaded, windows
from tests.tiny import tiny

PLAIN = Recipe("plain", "plain")


def statistics(ctx: int = 192, count: int = 2) -> Statistics:
    with Bench(loaded()).engine(PLAIN, tokens=ctx) as engine:
        return collect(engine, windows(ctx, count))


def test_statistics_are_those_of_a_dense_pass() -> None:
    seen: dict[int, list[torch.Tensor]] = {}
    module = tiny("llama", 2)

    def watch(own: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> Any:
        seen.setdefault(own.layer_idx, []).append(k[0, :, 64:])
        scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) * own.scaling
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        out = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
        return out.transpose(1, 2), None

    from transformers import AttentionInterface

    AttentionInterface.register("watched", watch)
    module.set_attn_implementation("watched")
    with torch.inference_mode():
        for row in windows().rows:
            module(input_ids=torch.tensor([row]))
    found = statistics()
    assert found.tokens == 2 * (192 - 64)
    told = found.tensors()
    for n, parts in seen.items():
        k = torch.cat(parts, 1).double()
        assert torch.allclose(told[f"layers.{n}.key_mean"], k.mean(1).float(), atol=1e-4)
        assert torch.allclose(told[f"layers.{n}.key_rms"], k.square().mean(1).sqrt().float(), rtol=1e-4)


def test_queries_count_for_their_own_kv_head() -> None:
    found = Statistics()
    q = torch.tensor([1.0, 3.0, 5.0, 7.0])[None, :, None].expand(6, 4, 16)
    found.see(3, q, torch.ones(6, 2, 16), 2 * torch.ones(6, 2, 16))
    found.see(3, q, torch.ones(6, 2, 16), 2 * torch.ones(6, 2, 16))
    told = found.tensors()
    assert told["layers.3.query_rms"][:, 0].tolist() == pytest.approx([5**0.5, 37**0.5])
    assert told["layers.3.value_rms"].eq(2).all() and found.tokens == 12


def test_scales_by_hand() -> None:
    some = ratio(torch.tensor([[1.0, 16.0]]), torch.tensor([[4.0, 4.0]]))[0]
    assert (some[0] / some[1]).item() == pytest.approx(2.0) and some.prod().item() == pytest.approx(1.0)
    assert ratio(torch.tensor([[1.0, 16.0, 1e6, 0.0]]), torch.ones(1, 4)).isfinite().all()


def test_scales_are_equal_in_pairs() -> None:
    found = statistics()
    pairs = [(torch.arange(64) + 32) % 64] * 2
    scales = choose_scales(found, pairs)
    for n in scales.layers:
        s = scales.of(n)
        assert s is not None and s.shape == (2, 64) and torch.equal(s, s[:, pairs[n]]) and s.std() > 0.01
        k2, q2 = (x + x[:, pairs[n]] for x in (found.sums[n].k2, found.sums[n].q2))
        wanted = (q2 / k2).log() / 4
        assert torch.corrcoef(torch.stack((s[0].double().log(), wanted[0])))[0, 1] > 0.999


def test_short_windows_are_refused() -> None:
    with Bench(loaded()).engine(PLAIN, tokens=64) as engine:  # noqa: SIM117
        with pytest.raises(InvalidRequest, match="first page"):
            collect(engine, windows(64))
    with pytest.raises(InvalidRequest, match="one window"):
        split(windows(192, 1))


# judging


def judge(count: int = 1) -> Judge:
    bench = Bench(loaded(), all_quantised=True)
    return Judge(lambda recipe: bench.engine(recipe, tokens=192), windows(192, count).rows)


def test_the_judge_agrees_with_probabilities() -> None:
    one, recipe = judge(), Recipe("q4_0", "q4_0")

    def said(recipe: Recipe) -> torch.Tensor:
        with Bench(loaded(), True).engine(recipe, tokens=192) as engine:
            rows = [engine.head(part) for _, part in engine.score(one.rows[0], chunk=512)]
        return torch.cat(rows).double().log_softmax(-1)

    p, q = said(PLAIN), said(recipe)
    assert one.kld(recipe) == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-3)
    assert abs(one.kld(PLAIN)) < 1e-9
    assert one.kld(recipe.with_(recent=9, exact_pages=3)) < 1e-9  # 192 tokens are all exact


# budgets

SHAPE = loaded().shape
SOME = [
    Sensitivity(0, "k", 8.0),
    Sensitivity(0, "v", 0.3),
    Sensitivity(1, "k", 1.0),
    Sensitivity(1, "v", 0.02),
]


def expected(recipe: Recipe) -> float:
    mse = {rung.name: rung.mse for rung in ladder(64)}
    return sum(s.kld * mse[recipe.formats(s.layer)[s.side == "v"]] / mse[PROBE] for s in SOME)


@pytest.mark.parametrize("bits", [2.6, 3.0, 3.7, 4.5, 6.0, 20.0])
def test_budgets_are_kept_and_well_spent(bits: float) -> None:
    found = fit_budget(SOME, Recipe(), SHAPE, bits)
    assert bits_per_value(found, SHAPE) <= bits
    every = (Recipe(layers=f"0={a}:{b},1={c}:{d}") for a, b, c, d in product(FORMATS, repeat=4))
    best = min(expected(recipe) for recipe in every if bits_per_value(recipe, SHAPE) <= bits)
    uniform = best_uniform(SOME, Recipe(), SHAPE, bits)
    assert bits_per_value(uniform, SHAPE) <= bits
    assert expected(found) <= expected(uniform) and expected(found) <= 2 * best


def test_budgets_too_small_are_refused() -> None:
    for fit in (fit_budget, best_uniform):
        with pytest.raises(InvalidRequest, match=r"turbo2_tcq in all layers takes 2\.\d+"):
            fit(SOME, Recipe(), SHAPE, 2.0)


def test_probing_finds_the_layer_that_cannot_bear_it() -> None:
    found = probe_layers(judge(), Recipe(), SHAPE)
    assert [(s.layer, s.side) for s in found] == [(0, "k"), (0, "v"), (1, "k"), (1, "v")]
    assert all(s.kld > 1e-6 for s in found)
    alone = judge().kld(Recipe("plain", "plain", layers=f"1={PROBE}:plain"))
    assert found[2].kld == pytest.approx(alone, rel=1e-6)


# files


def test_making_a_recipe_is_repeatable(tmp_path: Path) -> None:
    bench = Bench(loaded(), all_quantised=True)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made = make_recipe_file(bench, Recipe("q4_0", "q4_0"), windows(128, 3), scales=True)
        made.file.write(tmp_path / name / "r.toml")
    assert set(made.kld) == {"kld", "kld_without_scales"} and all(v > 0 for v in made.kld.values())
    for file in ("r.toml", "r.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    tensors = load_file(tmp_path / "a" / "r.safetensors")
    kinds = ("key_mean", "key_rms", "key_scale", "query_rms", "value_rms")
    assert set(tensors) == {f"layers.{n}.{kind}" for n in (0, 1) for kind in kinds}
    again = RecipeFile.read(tmp_path / "a" / "r.toml")
    assert again.evidence["kld"] == pytest.approx(made.kld["kld"], rel=1e-3)
    with Engine(loaded(), again.recipe, memory="8MB") as engine:
        assert engine.recipe.pair == "q4_0:q4_0+scales"


def test_a_budget_makes_formats_by_layer() -> None:
    made = make_recipe_file(Bench(loaded(), True), Recipe(), windows(128, 3), budget=3.9)
    assert made.bits <= 3.9 and set(made.kld) == {"kld", "kld_one_pair_for_all_layers"}
    assert made.file.recipe.model is not None and made.file.recipe.scales is None
    worse = made.kld["kld_one_pair_for_all_layers"] <= made.kld["kld"]
    assert bool(made.warnings) == worse


def test_attention_that_windows_would_not_use_is_refused() -> None:
    bench = Bench(loaded(), True)
    with pytest.raises(InvalidRequest, match="128 tokens do not reach beyond the first chunk of 256"):
        make_recipe_file(bench, Recipe(dca="on", dca_chunk=256), windows(128, 3))
