"""Recipes: formats by layer, files, and the models they were made for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from octavo import Engine, Recipe
from octavo.errors import InvalidFile, InvalidRequest, UnknownName
from octavo.model.digest import weights_digest
from octavo.recipe import ModelFacts, RecipeFile, Scales, layers_of
from tests.tiny import tiny_loaded

LAYERED = Recipe("turbo4", "turbo3", layers="0-1=q8_0,3=q8_0:q4_0")


def scales(layers: int = 2, heads: int = 2, head_dim: int = 64, seed: int = 0) -> Scales:
    """Scales between 1/2 and 2 that differ in every channel."""
    generator = torch.Generator().manual_seed(seed)
    values = 2 ** (2 * torch.rand(layers, heads, head_dim, generator=generator) - 1)
    return Scales(dict(enumerate(values)), "ratio")


# formats by layer


def test_layers_have_their_own_formats() -> None:
    assert [LAYERED.formats(n) for n in range(5)] == [
        ("q8_0", "q8_0"),
        ("q8_0", "q8_0"),
        ("turbo4", "turbo3"),
        ("q8_0", "q4_0"),
        ("turbo4", "turbo3"),
    ]
    assert LAYERED.pair == "turbo4:turbo3+layers" and LAYERED.pairs[0] == ("turbo4", "turbo3")


def test_equal_settings_are_equal_however_they_are_written() -> None:
    other = Recipe("turbo4", "turbo3", layers=" 3 = q8_0 : q4_0 , 0 - 1 = q8_0:q8_0")
    assert other == LAYERED and hash(other) == hash(LAYERED) and other.layers == "0-1=q8_0:q8_0,3=q8_0:q4_0"


def test_new_formats_hold_for_all_layers() -> None:
    plain = LAYERED.with_(k="plain", v="plain")
    assert not plain.packs and plain.formats(0) == ("plain", "plain")
    assert LAYERED.with_(k="q4_0", layers="0=q8_0").formats(0) == ("q8_0", "q8_0")
    assert LAYERED.with_(recent=0).layers == LAYERED.layers
    assert Recipe("plain", "plain", layers="2=plain:q4_0").packs


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ("0=q8", "did you mean 'q8_0'"),
        ("0-3=q8_0,3=q4_0", "layers 0-3 and 3 overlap"),
        ("5-2=q8_0", "write 2-5"),
        ("-1=q8_0", "'-1' is no layer"),
        ("last=q8_0", "'last' is no layer"),
        ("3", "layers 3 have no formats"),
        ("3=q8_0:", "layers 3 have no formats"),
        ("0=q8_0,,1=q8_0", "'' is no layer"),
    ],
)
def test_wrong_layers_are_refused(layers: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(told)):
        Recipe(layers=layers)


@given(st.lists(st.sampled_from(["q8_0:q8_0", "q8_0:q4_0", "plain:plain"]), min_size=1, max_size=40))
def test_layers_come_back_from_their_text(pairs: list[str]) -> None:
    k, v = pairs[0].split(":")
    recipe = Recipe(k, v, layers=layers_of(pairs, pairs[0]))
    assert [":".join(recipe.formats(n)) for n in range(len(pairs))] == pairs


# files


def test_files_hold_the_whole_recipe(tmp_path: Path) -> None:
    facts = ModelFacts("a model", "llama", ("full: 2 layers, 2 KV heads of 64",), "abc")
    recipe = LAYERED.with_(recent=128, rotate=False, scales=scales(), model=facts)
    evidence = {"text": 'a "quoted"\n name \\ ü.txt', "kld": 1.5e-05, "tokens": 3, "held out": True}
    RecipeFile(recipe, evidence, {"layers.0.key_rms": torch.ones(2, 64)}).write(tmp_path / "r.toml")
    again = RecipeFile.read(tmp_path / "r.toml")
    assert again.recipe == recipe and again.evidence == evidence
    assert again.recipe.model == facts and torch.equal(again.recipe.scales.of(1), recipe.scales.of(1))  # type: ignore[union-attr,arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.safetensors", "r.toml"]


def test_a_file_by_hand_may_be_short(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('version = 1\n[cache]\nk = "q4_0"\n[layers]\n"0-1" = "q8_0"\n')
    assert Recipe.load(path) == Recipe(k="q4_0", layers="0-1=q8_0")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as some editors save it
    assert Recipe.load(path) == Recipe(k="q4_0", layers="0-1=q8_0")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version = 1\n[cache]\nrecnt = 3", "unknown setting in .*r.toml: 'recnt'; did you mean 'recent'"),
        ("version = 1\n[cach]\nrecent = 3", "did you mean 'cache'"),
        ("version = 1\n[cache]\nrecent = '3'", "recent is '3'; it is of type int"),
        ("version = 1\n[cache]\nlayers = '0=q8_0'", "unknown setting"),
        ("version = 1\n[cache]\nk = 'q9_0'", "unknown format 'q9_0'"),
        ("version = 2", "version 2; this Octavo reads version = 1"),
        ("version = true", "version True; this Octavo reads version = 1"),
        ("version = 1.0", "version 1.0; this"),
        ("[cache]", "has no version; write version = 1"),
        ("version = 1\ncache = 3", "cache must be a table"),
        ("version = 1\n[layers]\n'0' = 8", "layers 0 are 8"),
        ("version = 1\n[layers]\n-1 = 'q8_0'", "r.toml: '-1' is no .*, which count from 0; .*\"0-3\" ="),
        ("version = 1\nlayers.-1 = 'q8_0'", "r.toml: '-1' is no layer"),
        ("version = 1\nlayers.0.k = 'q8_0'", 'layers 0 are .*; write "0" = "k:v"'),
        ("version = 1\n[layers]\n'0=q8_0,1' = 'q4_0'", "'0=q8_0,1' is no layer"),
        ("version = 1\n[layers]\n0 = 'q8_0,1=q4_0'", "unknown format 'q8_0,1=q4_0'"),
        (f"version = 1\n[layers]\n{'9' * 5000} = 'q8_0'", "is no layer"),
        ("version = 1\n[layers]\n'0-2' = 'q8_0'\n2 = 'q4_0'", "r.toml: layers 0-2 and 2 overlap"),
        ("version = 1\n[model]\nkv = [3]", "facts are texts"),
        ("version = 1\n[model]\nnam = 'x'", "did you mean 'name'"),
        ("version = 1\n[model]\nname = 3", "facts are texts"),
        ("version = 1\n[calibration]\nscale = 'ratio'", "did you mean 'scales'"),
        ("version = 1\n[calibration]\nscales = 'ratio'", "needs file, sha256 and scales"),
        ("version = 1\n[calibration]\nscales = 'ratio'\nfile = 'x'\nsha256 = 'y'", "keep the two together"),
        ("version = ", "is no TOML"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=told):
        Recipe.load(path)


free = st.recursive(
    st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False) | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), free))
@example({"\x7f": "\x00\x1f\x7f\x80\u2028\ufeff"})
def test_any_evidence_comes_back(tmp_path_factory: pytest.TempPathFactory, evidence: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "evidence.toml"
    RecipeFile(Recipe(), evidence).write(path)
    assert RecipeFile.read(path).evidence == evidence


def test_evidence_of_odd_names_and_numbers_can_be_read(tmp_path: Path) -> None:
    """A file's name need not be UTF-8; what cannot be counted is not a number in TOML either."""
    RecipeFile(Recipe(), {"text": "caf\udce9.txt", "kld": float("nan")}).write(tmp_path / "r.toml")
    found = RecipeFile.read(tmp_path / "r.toml").evidence
    assert found["text"] == "caf\\udce9.txt" and found["kld"] != found["kld"]


@pytest.mark.parametrize("evidence", [{1: "why"}, {"why": {1: 2}}])
def test_keys_of_evidence_are_texts(tmp_path: Path, evidence: dict[Any, Any]) -> None:
    with pytest.raises(InvalidRequest, match="the key 1 is of type int"):
        RecipeFile(Recipe(), evidence).write(tmp_path / "r.toml")


@pytest.mark.parametrize("evidence", [{"why": None}, {"why": [{1, 2}]}, {"why": torch.ones(1)}])
def test_evidence_that_toml_cannot_hold_replaces_nothing(tmp_path: Path, evidence: dict[str, Any]) -> None:
    RecipeFile(Recipe(scales=scales())).write(tmp_path / "r.toml")
    with pytest.raises(InvalidRequest, match=r"why is .*, which TOML cannot hold"):
        RecipeFile(Recipe(scales=scales(seed=1)), evidence).write(tmp_path / "r.toml")
    assert Recipe.load(tmp_path / "r.toml") == Recipe(scales=scales())


def test_a_toml_that_cannot_be_written_leaves_the_scales_as_they_were(tmp_path: Path) -> None:
    RecipeFile(Recipe(scales=scales())).write(tmp_path / "r.toml")
    (tmp_path / "r.toml.part").mkdir()
    with pytest.raises(InvalidFile, match=r"r\.toml cannot be written: Is a directory"):
        RecipeFile(Recipe(scales=scales(seed=1))).write(tmp_path / "r.toml")
    assert Recipe.load(tmp_path / "r.toml") == Recipe(scales=scales())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.safetensors", "r.toml", "r.toml.part"]


def test_a_disk_that_fills_up_keeps_no_half_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        path.touch()
        if path.name == "r.toml.part":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InvalidFile, match=r"r\.toml cannot be written: No space left"):
        RecipeFile(Recipe(scales=scales())).write(tmp_path / "r.toml")
    assert not list(tmp_path.iterdir())


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        Recipe.load(tmp_path / "none.toml")
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFile, match="no TOML"):
        Recipe.load(tmp_path / "r.toml")


def test_scales_that_changed_since_are_refused(tmp_path: Path) -> None:
    RecipeFile(Recipe(scales=scales())).write(tmp_path / "r.toml")
    RecipeFile(Recipe(scales=scales(seed=1))).write(tmp_path / "s.toml")
    (tmp_path / "s.safetensors").replace(tmp_path / "r.safetensors")
    with pytest.raises(InvalidFile, match="is not the file"):
        Recipe.load(tmp_path / "r.toml")


def test_statistics_alone_are_not_needed_to_load(tmp_path: Path) -> None:
    RecipeFile(Recipe(), tensors={"layers.0.key_rms": torch.ones(2, 64)}).write(tmp_path / "r.toml")
    (tmp_path / "r.safetensors").unlink()
    assert Recipe.load(tmp_path / "r.toml") == Recipe()


# scales


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_finite_and_above_zero(value: float) -> None:
    with pytest.raises(InvalidRequest, match="layer 0"):
        Scales({0: torch.full((2, 64), value)}, "ratio")


def test_scales_never_change() -> None:
    values = torch.ones(2, 64)
    kept = Scales({0: values}, "ratio")
    before = kept.sha256
    values.mul_(2)
    kept.of(0).mul_(3)  # type: ignore[union-attr]
    assert kept.of(0).eq(1).all() and kept.sha256 == before  # type: ignore[union-attr]
    assert kept != Scales({0: values}, "ratio")


# models


def facts(name: str = "tiny-llama", weights: str = "w", family: str = "llama") -> ModelFacts:
    return ModelFacts.of(tiny_loaded(family).shape, name, weights)


def test_recipes_are_refused_by_other_models() -> None:
    loaded = tiny_loaded("llama")
    made = facts(weights=weights_digest(loaded.module))
    Engine(loaded, Recipe(model=made), memory="8MB").close()
    with pytest.raises(InvalidRequest, match=r"not for tiny-llama: weights .* there, .* here"):
        Engine(tiny_loaded("llama", 1), Recipe(model=made), memory="8MB")
    with pytest.raises(InvalidRequest, match="architecture llama there, gemma3 here; cache full: 2 layers"):
        Engine(tiny_loaded("gemma3"), Recipe(model=made), memory="8MB")


def test_weights_are_known_in_any_precision() -> None:
    module = tiny_loaded("llama").module
    known = weights_digest(module)
    assert weights_digest(module.to(torch.bfloat16)) == known
    other = tiny_loaded("llama").module
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(1.01)  # type: ignore[operator]
    assert weights_digest(other) != known


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (Recipe(layers="1-2=q4_0"), "names layer 2, but .* has 2 layers, 0 to 1"),
        (Recipe(scales=scales(layers=3)), "scales layer 2, but the model has 2 layers"),
        (Recipe(scales=scales(head_dim=32)), r"of layer 0 are \[2, 32\], but the model has 2 KV heads of 64"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(recipe: Recipe, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        Engine(tiny_loaded("llama"), recipe, memory="8MB")


def test_layers_that_stay_plain_have_no_formats() -> None:
    shape = tiny_loaded("gemma3").shape  # layers 0 and 1 slide
    with pytest.raises(InvalidRequest, match="layers 0-1, which slide"):
        Recipe(layers="0-1=q4_0").check(shape)
    Recipe(layers="0-2=q4_0").check(shape)
    Recipe(layers="0-1=q4_0", sliding=True).check(shape)


def test_dictionaries_are_checked() -> None:
    with pytest.raises(UnknownName, match="recent"):
        Recipe.from_dict({"recnt": 3})
    with pytest.raises(InvalidRequest, match="rotate is 1; it is of type bool"):
        Recipe.from_dict({"rotate": 1})
