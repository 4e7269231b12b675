"""Streams of tokens become text without half characters, for every way a vocabulary spells."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from octavo.model.tokenizer import Tokenizer
from tests.tiny import byte_tokenizer

BYTES = Tokenizer(byte_tokenizer())


def sentencepiece(scheme: str | None) -> Tokenizer:
    """A llama-like vocabulary with byte fallback; `scheme` says which texts get a space in front."""
    specials = ["<unk>", "<s>", "</s>"]
    pieces = ["▁", *"Helo,wrd", "lo", "▁w", "▁H", "He"]
    vocab = {t: n for n, t in enumerate([*specials, *(f"<0x{b:02X}>" for b in range(256)), *pieces])}
    merges = [("l", "o"), ("▁", "w"), ("▁", "H"), ("H", "e")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>"))
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>"))


TOKENIZERS = {"bytes": BYTES, "plain": sentencepiece(None), "first": sentencepiece("first")}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=st.text(st.sampled_from("Helo, wrd€😀é�"), max_size=12))
def test_round_trip(kind: str, text: str) -> None:
    if kind == "first":
        text = text.lstrip(" ")  # such a vocabulary cannot tell its own first space from the text's
    tokenizer = TOKENIZERS[kind]
    tokens = tokenizer.encode(text, special=False)
    assert tokenizer.decode(tokens) == text


@given(tokens=st.lists(st.integers(0, 255), max_size=20))
def test_any_bytes_come_out_as_utf8_reads_them(tokens: list[int]) -> None:
    detokenizer = BYTES.stream()
    text = "".join(detokenizer.add(t) for t in tokens) + detokenizer.flush()
    assert text == bytes(tokens).decode(errors="replace")


def test_characters_wait_until_they_are_whole() -> None:
    detokenizer = BYTES.stream()
    assert [detokenizer.add(b) for b in "a€".encode()] == ["a", "", "", "€"]
    assert detokenizer.add(0xF0) == ""
    assert detokenizer.flush() == "�"
    assert detokenizer.flush() == ""


def test_byte_fallback_waits_too() -> None:
    tokenizer = TOKENIZERS["plain"]
    detokenizer = tokenizer.stream()
    pieces = [detokenizer.add(t) for t in tokenizer.encode("€😀", special=False)]
    assert [p for p in pieces if p] == ["€", "😀"]


def test_leading_spaces_belong_to_continuations() -> None:
    tokenizer = TOKENIZERS["first"]
    assert tokenizer.decode(tokenizer.encode("Hello world", special=False)) == "Hello world"
    tokens = tokenizer.encode("Hello world", special=False)
    start = next(n for n, t in enumerate(tokens) if n and tokenizer.token_bytes(t).startswith(b" "))
    assert tokenizer.stream().extend(tokens[start:]) == " world"


def test_special_tokens_have_no_text_and_unknown_ids_none_either() -> None:
    assert BYTES.decode([104, 257, 105, 258]) == "hi"
    assert BYTES.stream().add(9999) == ""


def test_a_text_after_others_gets_no_space_of_its_own() -> None:
    tokenizer = TOKENIZERS["first"]
    document = tokenizer.document("Hello,", raw=True)
    after = tokenizer.after_document("world", raw=True)
    assert tokenizer.decode(document + after) == "Hello,world"
