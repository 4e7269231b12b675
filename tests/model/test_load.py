"""Names, folders and damaged weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.errors import InvalidFile, UnknownName, UnsupportedModel
from octavo.model.digest import weights_digest
from octavo.model.load import LoadedModel, fingerprint, inspect_model, load_model
from tests.tiny import byte_tokenizer, tiny, tiny_config


def load_attention(model: LoadedModel) -> str:
    config: Any = model.module.config
    return str(config._attn_implementation)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny("gemma2").save_pretrained(tmp_path / "little")
    byte_tokenizer().save_pretrained(tmp_path / "little")
    return tmp_path / "little"


def test_a_folder_loads(folder: Path) -> None:
    model = load_model(folder)
    original = tiny("gemma2")
    assert (model.name, model.source) == ("little", folder)
    assert model.shape.parameters == sum(p.numel() for p in original.parameters())
    assert model.shape.dtype == "float32"
    assert [g.name for g in model.shape.groups] == ["sliding", "full"]
    assert not model.module.training
    assert load_attention(model) == "eager"
    assert model.identity == fingerprint(original)
    assert model.tokenizer.eos_ids == (257,)
    assert model.shape.notes == ()
    assert inspect_model(str(folder)) == model.shape


def test_dtype_is_chosen_by_name(folder: Path) -> None:
    model = load_model(folder, dtype="bf16")
    assert model.module.dtype == torch.bfloat16
    assert model.shape.dtype == "bfloat16"
    assert model.identity != load_model(folder).identity
    with pytest.raises(UnknownName, match="did you mean 'bfloat16'"):
        load_model(folder, dtype="bfloat")


def test_one_weight_changes_the_identity() -> None:
    model = tiny("llama")
    before = fingerprint(model)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.001)
    assert fingerprint(model) != before


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smolm2-135m", "unknown model 'smolm2-135m'; did you mean 'smollm2-135m'"),
        ("./nowhere/model", "no file or folder"),
        ("/nowhere/model", "no file or folder"),
        ("missing.gguf", "no file or folder"),
        ("nobody/nothing-at-all", "hub model 'nobody/nothing-at-all' cannot be fetched"),
        (Path("gone"), "no file or folder"),
    ],
)
def test_unknown_names(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnknownName, match=reason):
        load_model(name)


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"no config\.json; give a folder"):
        load_model(tmp_path)
    (tmp_path / "a.gguf").touch()
    with pytest.raises(InvalidFile, match=r"give the file itself: .*a\.gguf"):
        load_model(tmp_path)


def test_damaged_folders(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidFile, match="damaged or cut off"):
        load_model(folder)
    weights.unlink()
    with pytest.raises(InvalidFile, match="incomplete"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InvalidFile, match="incomplete"):
        load_model(folder)


def test_a_folder_without_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(InvalidFile, match="has no tokenizer; put"):
        load_model(folder)


def test_refused_before_weights(tmp_path: Path) -> None:
    AutoConfig.for_model("deepseek_v3").save_pretrained(tmp_path)
    for call in (inspect_model, load_model):
        with pytest.raises(UnsupportedModel, match="MLA"):
            call(tmp_path)


def test_unknown_architectures(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "from_the_future"}))
    with pytest.raises(UnsupportedModel, match="from_the_future"):
        inspect_model(tmp_path)


def test_untested_families_carry_a_note(tmp_path: Path) -> None:
    AutoConfig.for_model("gpt2", n_layer=1, n_embd=64, n_head=2, vocab_size=100).save_pretrained(tmp_path)
    assert inspect_model(tmp_path).notes == (
        "gpt2 is not among the families compared with Transformers' own attention",
    )


def test_the_text_part_of_gemma3_is_served(tmp_path: Path) -> None:
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        "gemma3",
        text_config=tiny_config("gemma3").to_dict(),
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.shape.notes == ("served without its image input",)
    assert [g.window for g in model.shape.groups] == [80, None]
    with torch.no_grad():
        out = model.module(input_ids=torch.arange(5)[None], use_cache=False).logits
    assert out.shape == (1, 5, model.shape.vocab)


def test_a_weight_of_several_tensors_is_told_by_each() -> None:
    """As torchao keeps quantised weights: codes here, scales there."""

    def told(codes: float, scales: float) -> tuple[str, str]:
        module = nn.Linear(8, 4, bias=False)
        parts = (torch.full((4, 8), codes), torch.full((4, 8), scales))
        module.weight = nn.Parameter(TwoTensor(*parts), requires_grad=False)
        return fingerprint(module), weights_digest(module)

    same, other_codes, other_scales = told(1, 2), told(3, 2), told(1, 3)
    assert same == told(1, 2)
    for n in range(2):
        assert len({same[n], other_codes[n], other_scales[n]}) == 3
