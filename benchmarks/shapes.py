"""Models of known shapes with random weights, and caches as if long prompts had been prefilled: for speed
only."""

from __future__ import annotations

import itertools

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from octavo import Engine, Sampling
from octavo.engine.sequence import Sequence
from octavo.formats.base import PAGE
from octavo.model.load import LoadedModel, shape_of
from octavo.model.tokenizer import Tokenizer
from octavo.pages.store import GroupPool
from tests.tiny import byte_tokenizer

EIGHT_B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
"""The shape of Qwen3-8B."""
SMALL = EIGHT_B | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 1024}


def random_model(
    sizes: dict[str, int], device: str, dtype: torch.dtype, attention: str = "eager"
) -> torch.nn.Module:
    """A Qwen3 of these sizes with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(**sizes)
    with torch.device(device):
        module = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    return module.eval()


def as_loaded(module: torch.nn.Module) -> LoadedModel:
    """The module as `load_model` would return it, with a tokenizer that nobody uses."""
    return LoadedModel(
        module, Tokenizer(byte_tokenizer()), shape_of(module.config), "random", "random", "random"
    )


def fill(pool: GroupPool) -> None:
    """Random finite content in every slot of a pool."""
    pool.k_plain.normal_()
    pool.v_plain.normal_()
    for side, plain in (("k", pool.k_plain), ("v", pool.v_plain)):
        some = torch.randn(64 * plain.shape[2], PAGE, plain.shape[4], device=plain.device)
        data = pool.store.codecs[side][0].encode(some).view(64, plain.shape[2], -1)
        for packed in pool.packed[side]:
            repeats = -(-len(packed) // 64)
            for n in range(repeats):
                part = packed[64 * n : 64 * (n + 1)]
                part.copy_(data[: len(part)])


def pretend(
    engine: Engine, count: int, length: int, new_tokens: int, *, computed: int | None = None
) -> list[Sequence]:
    """`count` running requests of `length` tokens each whose pages hold random content, about to decode, or
    with only `computed` tokens stored.

    Sequences differ in their first token, so nothing is shared.
    """
    core, ids = engine._core, itertools.count(1)
    made = []
    for _ in range(count):
        tokens = torch.randint(0, engine.shape.vocab, (length,)).tolist()
        tokens[0] = next(ids)
        engine.submit(tokens, Sampling(max_tokens=new_tokens, ignore_eos=True))
        sequence = core.scheduler.waiting.pop()
        core.scheduler.running.append(sequence)
        sequence.prompt = length - 1
        advance(engine, sequence, length - 1 if computed is None else computed)
        made.append(sequence)
    return made


def advance(engine: Engine, sequence: Sequence, computed: int) -> None:
    """Take pages up to `computed` tokens as prefill would, without computing anything."""
    ledger = engine._core.memory.ledger
    while sequence.computed < computed:
        sequence.computed = min(computed, sequence.computed + 8 * PAGE)
        ledger.extend(sequence.holding, sequence.computed)
        ledger.settle(sequence.holding, sequence.tokens, sequence.computed, share=False)
