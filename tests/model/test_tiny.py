"""The tiny models are what other tests take them for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.tiny import FAMILIES, VOCAB, tiny, tiny_loaded


def logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens, use_cache=False).logits[0].double()  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_sharp_and_hang_on_the_context(family: str) -> None:
    model = tiny(family)
    tokens = torch.randint(0, 256, (1, 60), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 20:30] = (changed[0, 20:30] + 1) % 256
    first, second = (logits(model, t).log_softmax(-1)[-5:] for t in (tokens, changed))
    assert first.std(-1).min() > 1.0
    assert (first.exp() * (first - second)).sum(-1).mean() > 1e-3


def test_seeds_decide_the_weights() -> None:
    one, same, other = tiny("llama"), tiny("llama"), tiny("llama", seed=1)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(one.get_parameter(name), same.get_parameter(name))
    assert not torch.equal(one.get_parameter(name), other.get_parameter(name))


def test_loaded_models_speak_bytes() -> None:
    model = tiny_loaded("qwen3", head_dim=32)
    assert model.shape.vocab == VOCAB
    assert model.shape.layers[0].head_dim == 32
    assert model.tokenizer.encode("hé") == [104, 195, 169]
    assert model.tokenizer.has_chat
    assert not tiny_loaded("llama", chat=False).tokenizer.has_chat
    assert model.identity != tiny_loaded("qwen3").identity
