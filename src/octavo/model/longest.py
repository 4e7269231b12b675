"""How much text one token can stand for, where the parts of a tokenizer prove it.

Nothing may make text vanish on its way into tokens. So this holds for BPE that spells every byte (byte-level,
or falling back to bytes), behind parts of which it is known that they leave no character out. Elsewhere there
is no bound: normalisers strip, added tokens swallow all spaces beside them, unknown characters fuse or go.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

__all__ = ["longest_token"]

Part = dict[str, Any]

_COMPOSED = 4
"""NFC makes one character of four at most: decomposing its result (NFD) gives at least as many characters as
there were before it, and makes at most four of one (UAX #15, "Maximum Expansion Factors")."""


def longest_token(backend: Any) -> int | None:
    """The most characters of a text that one token stands for; None where that is not provable."""
    fast = getattr(backend, "backend_tokenizer", None)
    if fast is None or not isinstance(fast.model, BPE):
        return None
    splits = _parts(fast.pre_tokenizer, "pretokenizers")
    shrinks = [_shrinks(part) for part in _parts(fast.normalizer, "normalizers")]
    added = list(fast.get_added_tokens_decoder().values())
    vocab = fast.get_vocab(with_added_tokens=True)
    if not all(map(_keeps, splits)) or not all(shrinks) or not _spells_bytes(fast.model, splits, vocab):
        return None
    if any(token.lstrip or token.rstrip for token in added):
        return None
    normalise = fast.normalizer.normalize_str if fast.normalizer else str
    longest = max(len(token) for token in [*vocab, *(normalise(token.content) for token in added)])
    return longest * math.prod(shrinks)


def _parts(part: Any, name: str) -> list[Part]:
    """A normaliser or pre-tokenizer, or all in a sequence of them, as tokenizer.json writes them."""
    if part is None:
        return []
    data: Part = json.loads(part.__getstate__())
    return data[name] if data["type"] == "Sequence" else [data]


def _keeps(split: Part) -> bool:
    """Whether a pre-tokenizer leaves no character out."""
    if split["type"] == "Split":
        return bool(split["behavior"] != "Removed")
    return split["type"] in ("ByteLevel", "Digits", "Metaspace")


def _shrinks(normaliser: Part) -> int:
    """How many characters become one at most; 0 for any number."""
    if normaliser["type"] == "NFC":
        return _COMPOSED
    if normaliser["type"] == "Replace":
        pattern = normaliser["pattern"].get("String")
        return int(pattern is not None and len(pattern) <= len(normaliser["content"]))
    return int(normaliser["type"] == "Prepend")


def _spells_bytes(model: BPE, splits: list[Part], vocab: dict[str, int]) -> bool:
    """Whether there is a token for every byte, so that nothing is unknown."""
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    if any(split["type"] == "ByteLevel" for split in splits):
        return all(char in vocab for char in ByteLevel.alphabet())
    return bool(model.byte_fallback) and all(f"<0x{byte:02X}>" in vocab for byte in range(256))
