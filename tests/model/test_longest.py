"""What is refused before it is tokenised must be too long for certain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from octavo.model.longest import longest_token
from octavo.model.tokenizer import Tokenizer
from tests.tiny import byte_alphabet, byte_tokenizer

MERGED = ["aa", "aaaa", "Ġ" * 2, "Ġ" * 4, "ĠĠĠĠaaaa"]
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]
SPM: dict[str, Any] = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}


def bpe(
    *, normalizer: Any = None, splits: Any = None, pieces: Any = None, added: Any = (), **settings: Any
) -> PreTrainedTokenizerFast:
    """BPE of `pieces`, byte-level unless they are given; longer ones are merged of two halves."""
    pieces = [*byte_alphabet(), *MERGED] if pieces is None else pieces
    merges = [(p[: len(p) // 2], p[len(p) // 2 :]) for p in pieces if len(p) > 1 and not p.startswith("<")]
    vocab = {piece: n for n, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, **settings))
    backend.pre_tokenizer = splits or pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if normalizer:
        backend.normalizer = normalizer
    backend.add_tokens(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def spm(pieces: Any = ("a", "aa", "aaaa", "▁", "▁▁"), **settings: Any) -> PreTrainedTokenizerFast:
    """As sentencepiece vocabularies come."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = {"normalizer": normalizer, "splits": pre_tokenizers.Split("@", "isolated"), **SPM} | settings
    return bpe(pieces=["<unk>", *FALLBACK, *pieces], **parts)


SOUND = {
    "bytes": (bpe(), 8),
    "NFC": (bpe(normalizer=normalizers.NFC()), 4 * 8),
    "llama": (spm(), 6),
    "gemma": (spm(normalizer=normalizers.Replace(" ", "▁")), 6),
    "added": (bpe(added=[AddedToken("<a long one>", normalized=True)]), 12),
    "llama 3": (
        bpe(
            splits=pre_tokenizers.Sequence(
                [pre_tokenizers.Split("a@", "isolated"), pre_tokenizers.ByteLevel()]
            )
        ),
        8,
    ),
}
TEXTS = st.text(st.sampled_from("a @é\u0301\u1f82\u1fb7\ufb2c\u1100\u1161\u11a8\u0345\u0313\0😀")) | st.text()


@pytest.mark.parametrize("name", SOUND)
@given(text=TEXTS, times=st.integers(1, 40))
def test_no_token_stands_for_more(name: str, text: str, times: int) -> None:
    tokenizer, longest = SOUND[name]
    assert longest_token(tokenizer) == longest
    text *= times
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) * longest >= len(text)


def test_composition_is_counted() -> None:
    """One character of four: a bound without that would be none."""
    tokenizer, _ = SOUND["NFC"]
    text = "\u03b1\u0313\u0300\u0345" * 9
    assert tokenizer.backend_tokenizer.normalizer.normalize_str(text) == "\u1f82" * 9


SPACES, WORDS, ODD = " " * 999 + "a", "a " * 999, "\u0416" * 999
NONE: dict[str, tuple[Any, str]] = {
    "strip": (bpe(normalizer=normalizers.Strip()), SPACES),
    "replaced by less": (bpe(normalizer=normalizers.Replace("  ", "")), SPACES),
    "a pattern": (bpe(normalizer=normalizers.Replace(Regex(" +"), " ")), SPACES),
    "in a sequence": (bpe(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])), SPACES),
    "removed": (
        bpe(
            splits=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])
        ),
        SPACES,
    ),
    "whitespace": (
        bpe(splits=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])),
        SPACES,
    ),
    "lstrip": (bpe(added=[AddedToken("<x>", lstrip=True)]), " " * 999 + "<x>"),
    "rstrip": (bpe(added=[AddedToken("<x>", rstrip=True)]), "<x>" + " " * 999),
    "bytes that are missing": (bpe(pieces=byte_alphabet()[97:98]), ODD),
    "unknown characters fused": (spm(byte_fallback=False), ODD),
}


@pytest.mark.parametrize("name", NONE)
def test_where_text_vanishes_there_is_no_bound(name: str) -> None:
    tokenizer, text = NONE[name]
    assert longest_token(tokenizer) is None
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) < 20


@pytest.mark.parametrize(
    "model", [models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"), models.WordLevel({"a": 0}, "a")]
)
def test_other_models_have_no_bound(model: Any) -> None:
    assert longest_token(PreTrainedTokenizerFast(tokenizer_object=Backend(model))) is None
    assert longest_token(object()) is None


def test_the_check_hears_of_what_the_template_leaves() -> None:
    """Templates may trim what they are given: rendered text counts."""
    backend = byte_tokenizer(True)
    heard: list[int] = []
    tokenizer = Tokenizer(backend).within(heard.append)
    long = [{"role": "user", "content": "x" * 1300}]
    for tokens in (
        tokenizer.chat(long),
        tokenizer.encode("x" * 1300),
        tokenizer.document("x" * 1300, raw=False),
    ):
        assert 100 <= heard[-1] <= len(tokens)
    template = "{% for m in messages %}{{ m['content'] | trim }}{% endfor %}"
    trimming = PreTrainedTokenizerFast(tokenizer_object=backend.backend_tokenizer, chat_template=template)
    tokens = Tokenizer(trimming).within(heard.append).chat([{"role": "user", "content": "x" + " " * 5000}])
    assert heard[-1] == len(tokens) == 1 and len(heard) == 4
