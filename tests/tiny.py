"""Tiny random models of every supported family, and byte tokenizers to run the engine on them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from octavo.model.load import LoadedModel

BYTES = 256
SPECIALS = ("<bos>", "<eos>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>")
VOCAB = 264

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_ALTERNATING = ["sliding_attention", "full_attention"]

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": _EXPERTS,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 48},
    "gemma2": {
        "num_hidden_layers": 4,
        "layer_types": _ALTERNATING * 2,
        "sliding_window": 100,
        "query_pre_attn_scalar": 64,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 80,
        "query_pre_attn_scalar": 64,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "mistral": {"sliding_window": 150},
    "phi3": {"num_attention_heads": 4, "original_max_position_embeddings": 4096},
    "gpt_oss": {
        "num_hidden_layers": 4,
        "layer_types": _ALTERNATING * 2,
        "sliding_window": 70,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 1024,
        },
    },
    "glm4": {"partial_rotary_factor": 0.5},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
}
_MODEL_TYPES = {"gemma3": "gemma3_text"}


def tiny_config(family: str, **overrides: Any) -> Any:
    """The configuration of `tiny(family, **overrides)`."""
    settings = {**_SIZES, **FAMILIES[family], **overrides}
    return AutoConfig.for_model(_MODEL_TYPES.get(family, family), **settings)


def tiny(family: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model of `family` in eager attention, the same for the same seed.

    Weights are scaled so that attention is far from uniform and logits are far from flat.
    """
    config = tiny_config(family, **overrides)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.ndim == 1 and "norm" not in name:  # the library leaves some of them uninitialised
                parameter.zero_()
            _randomise(parameter, generator)
    return model.eval()


def _randomise(parameter: Tensor, generator: torch.Generator) -> None:
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.ndim == 1:  # norms, biases, sinks: perturb what the family starts from
        parameter.nan_to_num_().add_(0.2 * noise)
    else:
        parameter.copy_(noise * 1.6 / parameter.shape[-1] ** 0.5)


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m['role']) }}{% endif %}"
    "<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def byte_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """One token per byte (ids 0..255), `SPECIALS` after them, and a small chat template when `chat`."""
    alphabet = byte_alphabet()
    backend = Backend(models.BPE(vocab={char: n for n, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )
    tokenizer.chat_template = TEMPLATE if chat else None
    return tokenizer


def byte_alphabet() -> list[str]:
    """The printable stand-ins of bytes 0..255 that GPT-2's byte-level BPE uses."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(moved)) for b in range(BYTES)]


def tiny_loaded(family: str, seed: int = 0, *, chat: bool = True, **overrides: Any) -> LoadedModel:
    """`tiny(family, seed)` with a byte tokenizer, as `load_model` would return it."""
    from octavo.model.load import LoadedModel, shape_of
    from octavo.model.tokenizer import Tokenizer

    module = tiny(family, seed, **overrides)
    eos = (257, SPECIALS.index("<|end|>") + BYTES) if chat else (257,)
    name = f"tiny-{family}"
    return LoadedModel(
        module=module,
        tokenizer=Tokenizer(byte_tokenizer(chat), eos_ids=eos),
        shape=shape_of(module.config),
        name=name,
        identity=f"{name}-{seed}-{sorted(overrides.items())}",
        source=name,
    )
