"""A GGUF file of a tiny random llama, small enough to convert in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from tests.tiny import SPECIALS, TEMPLATE, byte_alphabet

HIDDEN, VOCAB = 64, 263


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    """`path` holds a one-layer model in q8_0 with a byte vocabulary, one merge and a chat template."""
    writer = GGUFWriter(str(path), architecture)
    _add_settings(writer)
    _add_vocabulary(writer)
    for name, values in _weights().items():
        if values.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_settings(writer: GGUFWriter) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)


def _add_vocabulary(writer: GGUFWriter) -> None:
    tokens = [*byte_alphabet(), *SPECIALS, "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * len(SPECIALS) + [1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_eot_token_id(261)
    writer.add_chat_template(TEMPLATE)


def _weights() -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {
        "token_embd": (VOCAB, HIDDEN),
        "output_norm": (HIDDEN,),
        "output": (VOCAB, HIDDEN),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_k": (32, HIDDEN),
        "blk.0.attn_v": (32, HIDDEN),
    }
    for name in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = (HIDDEN, HIDDEN)
    return {f"{n}.weight": random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
