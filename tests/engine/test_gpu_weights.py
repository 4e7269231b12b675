"""Quantised weights, as Transformers loads them, through the engine's graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen3Config

from octavo import Engine, Recipe, Sampling
from octavo.model.load import load_model
from tests.engine.helpers import decode_grants
from tests.tiny import byte_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 264,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def torchao(name: str) -> Any:
    quantization = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    return TorchAoConfig(getattr(quantization, name)())


def nf4() -> Any:
    pytest.importorskip("bitsandbytes")
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )


WAYS: dict[str, Callable[[], Any]] = {
    "torchao int8": lambda: torchao("Int8WeightOnlyConfig"),
    "torchao float8": lambda: torchao("Float8WeightOnlyConfig"),
    "bitsandbytes nf4": nf4,
}


@pytest.mark.parametrize(("way", "compile"), [*((way, False) for way in WAYS), ("torchao int8", True)])
def test_quantised_weights_decode_in_graphs(way: str, compile: bool, tmp_path: Path) -> None:
    config = WAYS[way]()
    torch.manual_seed(0)
    whole = AutoModelForCausalLM.from_config(Qwen3Config(**SIZES), dtype=torch.bfloat16)
    whole.save_pretrained(tmp_path / "whole")
    packed = AutoModelForCausalLM.from_pretrained(
        tmp_path / "whole", dtype=torch.bfloat16, quantization_config=config, device_map={"": "cuda"}
    )
    packed.save_pretrained(tmp_path / "packed")
    byte_tokenizer().save_pretrained(tmp_path / "packed")
    loaded = load_model(tmp_path / "packed", device="cuda")
    engine = Engine(loaded, Recipe.from_pair("turbo4"), memory="256MB", max_sequences=4, compile=compile)
    assert engine.stats().backend["name"] == "cuda"
    core = engine._core
    for count in (1, 2):
        engine.submit("A harbour at dawn. " * (5 + count), Sampling(max_tokens=90, ignore_eos=True))
        for _ in range(4):
            engine.step()
        grants = decode_grants(engine)
        assert len(grants) == count
        eager = core.runner.logits(core.batch(grants))
        assert float((eager - core._run(grants)).norm() / eager.norm()) < 2e-2
    while not engine.idle:
        engine.step()
    assert engine.stats().requests["finished"] == 2
