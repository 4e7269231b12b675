"""What cannot be served is said before weights load: the fact, its numbers, the next move.

Each check looks at a configuration and returns the reason it stands in the way, or None.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from octavo.errors import UnsupportedModel
from octavo.model.describe import layer_config, layer_kinds, modelling, text_config
from octavo.model.rope import rope_settings

__all__ = ["COMPARED", "TEXT_ONLY", "hands_on", "refuse", "why_not"]

TEXT_ONLY = ("gemma3",)
"""Families with an image input whose text part runs alone."""

COMPARED = (
    "cohere2",
    "ernie4_5",
    "exaone4",
    "gemma2",
    "gemma3",
    "gemma4",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "llama",
    "minimax_m2",
    "mistral",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "starcoder2",
)
"""Families whose paged attention was compared with Transformers' own; others are served with a note."""

_ROPE_KINDS = ("default", "linear", "yarn", "llama3", "proportional", "dynamic", "longrope")
_NEEDED = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings")
_INNER = ("attn_config", "ffn_config")  # parts of a text model that have a configuration of their own
_ODD_FAMILIES = {
    "blt": "it reads bytes through three models of its own, each with a cache",
    "diffllama": "it attends twice in each layer with different values",
    "doge": "its attention mask depends on the values of all earlier tokens",
    "hrm_text": "it runs the same layers many times a token, each time with other keys",
}
_ATTENDS = re.compile(r"self\.(?:self_attn|attn|attention)\((.*?)\n        \)", re.DOTALL)
"""A layer's call of its attention."""
_PLAIN = "choose a model whose layers all use full or sliding-window attention (`octavo models` lists two)"


def refuse(config: Any) -> None:
    """Raise UnsupportedModel where the model of `config` cannot be served."""
    reason = why_not(config)
    if reason is not None:
        raise UnsupportedModel(f"{config.model_type} cannot be served: {reason}")


def why_not(config: Any) -> str | None:
    """The first reason that the model of `config` cannot be served; None when it can."""
    return next((reason for check in _CHECKS if (reason := check(config, text_config(config)))), None)


def _encoder_decoder(config: Any, text: Any) -> str | None:
    if not getattr(config, "is_encoder_decoder", False):
        return None
    return f"it has an encoder beside its decoder; {_PLAIN}"


def _modality(config: Any, text: Any) -> str | None:
    named = [name for name in getattr(config, "sub_configs", {}) if getattr(config, name, None) is not text]
    parts = [name for name in named if name not in _INNER]
    if (text is config and not parts) or config.model_type in TEXT_ONLY:
        return None
    others = ", ".join(part.removesuffix("_config") for part in parts) or "more"
    return (
        f"it is a composite of text and {others}, and only plain text models are served; look for a release "
        f"with its text part alone ({text.model_type})"
    )


def _causal(config: Any, text: Any) -> str | None:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"Transformers has no causal language model of this type; {_PLAIN}"
    masked = type(text) in MODEL_FOR_MASKED_LM_MAPPING or "bert" in text.model_type
    encoder = masked and getattr(text, "is_decoder", None) is False
    if encoder or getattr(text, "use_bidirectional_attention", False) is True:
        return f"its attention looks at later tokens too, so nothing can be generated from a cache; {_PLAIN}"
    return None


def _odd_family(config: Any, text: Any) -> str | None:
    reason = _ODD_FAMILIES.get(text.model_type)
    return f"{reason}, which pages of keys and values cannot hold; {_PLAIN}" if reason else None


def _latent(config: Any, text: Any) -> str | None:
    one = layer_config(text, 0)
    rank = getattr(one, "kv_lora_rank", None)
    if not rank:
        return None
    rope = getattr(one, "qk_rope_head_dim", 0)
    return (
        f"it uses multi-head latent attention (MLA): a token's cache is one latent of {rank} + {rope} values "
        f"a layer, not keys and values by head; {_PLAIN}"
    )


def _indexed(config: Any, text: Any) -> str | None:
    top = getattr(layer_config(text, 0), "index_topk", None)
    if not top:
        return None
    return f"its layers choose {top} tokens through an index of their own (DSA); {_PLAIN}"


def _layer_kinds(config: Any, text: Any) -> str | None:
    counts = Counter(
        kind for kind in layer_kinds(text) if kind not in ("full_attention", "sliding_attention")
    )
    if not counts:
        return None
    found = ", ".join(f"{n} are {kind}" for kind, n in counts.items())
    if "chunked_attention" in counts:
        why = f"chunked attention forgets everything at each {text.attention_chunk_size}-token border"
    else:
        why = "such layers keep a state per sequence instead of keys and values per token"
    return f"of {text.num_hidden_layers} layers {found}; {why}; {_PLAIN}"


def _stateful(config: Any, text: Any) -> str | None:
    if not getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_is_stateful", False):
        return None
    return f"it keeps a recurrent state per sequence beside its keys and values; {_PLAIN}"


def _interface(config: Any, text: Any) -> str | None:
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    code = modelling(text) or modelling(config)
    if model_class._supports_attention_backend and hasattr(code, "ALL_ATTENTION_FUNCTIONS"):
        if not hands_on(code):
            return (
                f"the layers of {model_class.__name__} hand no keyword arguments on to their attention in "
                f"this Transformers, and pages come by one; {_PLAIN}"
            )
        return None
    return (
        f"{model_class.__name__} does not offer Transformers' attention interface, and that is where pages "
        f"come in; {_PLAIN}"
    )


def hands_on(code: ModuleType | None) -> bool:
    """Whether the layers of a Transformers module pass keyword arguments on; True where it cannot be read."""
    calls = _ATTENDS.findall(inspect.getsource(code)) if code is not None else []
    return not calls or any("**" in call for call in calls)


def _numbers(config: Any, text: Any) -> str | None:
    missing = [name for name in _NEEDED if not isinstance(getattr(text, name, None), int)]
    if not missing:
        return None
    return f"its configuration does not say {', '.join(missing)}; {_PLAIN}"


def _shared_layers(config: Any, text: Any) -> str | None:
    shared = getattr(text, "num_kv_shared_layers", 0)
    if not shared:
        return None
    return f"{shared} of its {text.num_hidden_layers} layers read another layer's keys and values; {_PLAIN}"


def _head_dim(config: Any, text: Any) -> str | None:
    for index in range(text.num_hidden_layers):
        reason = _heads(layer_config(text, index))
        if reason:
            return f"layer {index} has {reason}; {_PLAIN}"
    return None


def _heads(layer: Any) -> str | None:
    heads = layer.num_attention_heads
    kv_heads = getattr(layer, "num_key_value_heads", None) or heads
    dim = getattr(layer, "head_dim", None) or layer.hidden_size // heads
    if dim % 8 or not 8 <= dim <= 512:
        return f"a head_dim of {dim}, and pages hold multiples of 8 up to 512"
    if (getattr(layer, "v_head_dim", None) or dim) != dim:
        return f"keys of {dim} and values of {layer.v_head_dim} channels, and pages hold equal ones"
    if heads % kv_heads:
        return f"{heads} query heads over {kv_heads} KV heads, which do not divide"
    return None


def _rope(config: Any, text: Any) -> str | None:
    for settings in rope_settings(text).values():
        kind = settings.get("rope_type", "default")
        if kind not in _ROPE_KINDS:
            return f"its RoPE is of kind {kind!r}, and known are {', '.join(_ROPE_KINDS)}; {_PLAIN}"
    return None


_CHECKS: tuple[Callable[[Any, Any], str | None], ...] = (
    _encoder_decoder,
    _odd_family,
    _latent,
    _indexed,
    _layer_kinds,
    _modality,
    _causal,
    _stateful,
    _interface,
    _numbers,
    _shared_layers,
    _head_dim,
    _rope,
)
