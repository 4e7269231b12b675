"""`octavo info`: what it says of the cache is what the pool holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import Engine, Recipe
from octavo.cli.fanout import dense_bytes
from octavo.cli.info import cache_bytes
from tests.cli.conftest import TEXT, Octavo
from tests.tiny import tiny_loaded


def test_everything_is_said(octavo: Octavo, model: str) -> None:
    found = octavo("info", model, "--json").json
    assert found["groups"] == [
        {"name": "full", "layers": 2, "kv_heads": 2, "q_heads": 4, "head_dim": 64, "window": None}
    ]
    assert found["backend"]["name"] and found["backend"]["reason"]
    plain = next(f for f in found["formats"] if f["pair"] == "plain:plain")
    assert plain["bytes_per_token"] == 2 * 2 * 2 * 64 * 4
    told = octavo("info", model).out
    assert "q8_0:q4_0" in told and found["backend"]["reason"] in told


def test_chosen_formats_are_shown_alone(octavo: Octavo, model: str) -> None:
    found = octavo("info", model, "-ctk", "q4_0", "-ctv", "q4_0", "--tokens", "500", "--json").json
    assert [f["pair"] for f in found["formats"]] == ["q4_0:q4_0"] and found["tokens"] == 500


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "(auto) is on with --context 100000, as with any beyond the"),
        (["--tokens", "64"], "(auto) is off with --context 64, as with any up to the"),
        (["--dca", "on"], "is on: trained on"),
        (["--dca", "off"], "is off: a context beyond the"),
    ],
)
def test_dual_chunk_attention_is_on_or_off_for_a_reason(
    octavo: Octavo, model: str, options: list[str], told: str
) -> None:
    assert f"Dual Chunk Attention {told}" in octavo("info", model, *options).out


def test_evidence_of_any_kind_is_shown(octavo: Octavo, model: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("version = 1\n[evidence]\nday = 2026-01-31\nkld = {q8 = nan}\n")
    found = octavo("info", model, "--recipe", str(tmp_path / "r.toml"), "--json").json
    assert found["evidence"] == {"day": "2026-01-31", "kld": {"q8": "NaN"}}


def test_wrong_devices_and_models_are_told(octavo: Octavo, model: str) -> None:
    assert "does not exist here" in octavo("info", model, "--device", "warp").err
    assert octavo("info", "no-such-model").status == 2


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "recipe", [Recipe(), Recipe("q8_0", "q4_0", recent=0, exact_pages=0), Recipe("plain", "plain")]
)
def test_bytes_agree_with_the_pool(family: str, recipe: Recipe) -> None:
    loaded = tiny_loaded(family)
    with Engine(loaded, recipe) as engine, engine.document(TEXT[:1000]) as document:
        told, _ = cache_bytes(loaded.shape, recipe, document.tokens)
        assert engine.stats().bytes["live"] == told


def test_dense_caches_keep_windows_only() -> None:
    shape = tiny_loaded("gemma3").shape  # two layers see 80 tokens, one sees all; one KV head of 64
    assert dense_bytes(shape, 1000) == (80 + 80 + 1000) * 2 * 64 * 2
