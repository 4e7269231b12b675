"""`octavo calibrate`, and recipe files on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.recipe import RecipeFile
from tests.cli.conftest import Octavo


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, model: str, document: str) -> str:
    """A recipe with scales and a layer of its own."""
    from octavo.cli import main

    path = tmp_path_factory.mktemp("recipes") / "r.toml"
    status = main(
        ["calibrate", model, "--text", document, "-o", str(path), "--ctx", "128", "--tokens", "512",
         "--scales", "-ctk", "q4_0", "-ctv", "q8_0", "--layers", "1=q8_0"]
    )  # fmt: skip
    assert not status
    return str(path)


def test_it_says_what_it_made(octavo: Octavo, model: str, document: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    asked = ("--ctx", "128", "--tokens", "512", "--formats", "turbo4:turbo3", "--recent", "0")
    ran = octavo("calibrate", model, "--text", document, "-o", str(path), *asked, "--json")
    found = ran.json
    assert found["recipe"] == str(path) and found["pair"] == "turbo4:turbo3" and found["kld"]["kld"] > 0
    made = RecipeFile.read(path)
    assert made.recipe.recent == 0 and made.recipe.model is not None and made.recipe.scales is None
    assert made.evidence["text"] == "house.txt" and made.evidence["tokens"] == 3 * 64
    assert path.with_suffix(".safetensors").exists()


def test_budgets_name_layers(octavo: Octavo, model: str, document: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    asked = ("--ctx", "128", "--tokens", "256", "--budget", "4.2")
    ran = octavo("calibrate", model, "--text", document, "-o", str(path), *asked)
    assert ran.status == 0 and "bits a value" in ran.out and "one_pair_for_all_layers" in ran.out


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--budget", "4", "-ctk", "q8_0"), "--budget chooses the formats"),
        (("--formats", "q4_0", "-ctk", "q8_0"), "--formats is -ctk and -ctv in one"),
        (("--formats", "q9_0"), "unknown format 'q9_0'"),
        (("--formats", "q8_0:"), "'q8_0:' is no pair of formats"),
        (("--formats", "plain:q4_0", "--scales"), "--scales would change nothing: keys are plain"),
        (("--budget", "nan", "--ctx", "128", "--tokens", "256"), "nan bits a value are too few"),
        (("--budget", "1", "--ctx", "128", "--tokens", "256"), "bits a value are too few"),
        (("--layers", "7=q4_0", "--ctx", "128"), "names layer 7"),
        (("--ctx", "9999999"), "give a longer text"),
    ],
)
def test_wrong_requests_write_nothing(
    octavo: Octavo, model: str, document: str, tmp_path: Path, asked: tuple[str, ...], told: str
) -> None:
    ran = octavo("calibrate", model, "--text", document, "-o", str(tmp_path / "r.toml"), *asked)
    assert ran.status == 2 and told in ran.err and not list(tmp_path.iterdir())


def test_the_file_must_be_toml(octavo: Octavo, model: str, document: str, tmp_path: Path) -> None:
    ran = octavo("calibrate", model, "--text", document, "-o", str(tmp_path / "r.json"))
    assert ran.status == 2 and "r.toml" in ran.err


def test_info_shows_layers_and_evidence(octavo: Octavo, model: str, recipe: str) -> None:
    found = octavo("info", model, "--recipe", recipe, "--json").json
    assert [f["pair"] for f in found["formats"]] == ["q4_0:q8_0+layers+scales"]
    assert [(x["k"], x["v"], x["scaled"]) for x in found["layers"]] == [
        ("q4_0", "q8_0", True), ("q8_0", "q8_0", True)
    ]  # fmt: skip
    pages = sum(x["page_bytes"] for x in found["layers"])
    assert found["formats"][0]["bytes_per_token"] == pages / 64
    assert found["evidence"]["text"] == "house.txt"
    told = octavo("info", model, "--recipe", recipe).out
    assert "evidence: text = house.txt" in told and "bytes/page" in told


def test_options_beside_a_file_win(octavo: Octavo, model: str, recipe: str) -> None:
    found = octavo("info", model, "--recipe", recipe, "-ctk", "q6_0", "--json").json
    assert [f["pair"] for f in found["formats"]] == ["q6_0:q8_0+scales"]
    asked = ("--recent", "0", "--memory", "8MB", "-n", "2", "--json")
    ran = octavo("run", model, "-p", "Hello", "--recipe", recipe, *asked)
    assert ran.json["recipe"] == "q4_0:q8_0+layers+scales"


def test_recipes_of_other_models_are_refused(
    octavo: Octavo, recipe: str, tmp_path: Path, document: str
) -> None:
    from tests.tiny import byte_tokenizer, tiny

    tiny("llama", 7).save_pretrained(tmp_path)
    byte_tokenizer(True).save_pretrained(tmp_path)
    ran = octavo("run", str(tmp_path), "-p", "Hello", "--recipe", recipe, "--memory", "8MB")
    assert ran.status == 2 and "was made for tiny-chat" in ran.err and "weights" in ran.err


def test_a_place_that_cannot_be_written_is_told_first(octavo: Octavo, document: str, tmp_path: Path) -> None:
    """Before a model is read: this one does not exist."""
    ran = octavo("calibrate", "no/such", "--text", document, "-o", str(tmp_path / "no" / "r.toml"))
    assert ran.status == 2 and "is no folder; make it first" in ran.err
    if Path("/proc/self").is_dir():  # a folder that nobody can write in
        ran = octavo("calibrate", "no/such", "--text", document, "-o", "/proc/self/r.toml")
        assert ran.status == 2 and "/proc/self cannot be written: " in ran.err and "another -o" in ran.err
