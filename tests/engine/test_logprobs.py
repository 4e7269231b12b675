"""What log-probabilities say about tokens: their bytes, and where in the answer's text they begin."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import Delta, Sampling
from octavo.engine.request import Request, collect
from octavo.engine.requests import Completion
from octavo.engine.sampler import Choice
from octavo.engine.sequence import Sequence
from octavo.engine.text import Output
from octavo.server.logprobs import for_chat, for_completion
from tests.model.test_detokenizer import BYTES, TOKENIZERS

EOS = 257
TEXT = " Hello, w€o😀rld"


def answer(kind: str, tokens: list[int], stop: tuple[str, ...] = ()) -> Completion:
    """`tokens` as an answer: each beside the last token of the vocabulary as its alternative."""
    tokenizer = TOKENIZERS[kind]
    rules = Sampling(max_tokens=len(tokens), stop=stop, logprobs=1)
    sequence = Sequence(0, [1], 1, 1000, rules, cast(Any, None))
    request = Request(sequence, Output(tokenizer, stop))
    deltas: list[Delta] = []
    for token in tokens:
        deltas.append(request.accept(Choice(token, -0.5, ((tokens[0], -1.0),)), tokenizer))
        if deltas[-1].finish:
            break
    return collect(deltas)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_spell_the_text_and_lie_where_it_says(kind: str) -> None:
    """A leading space too, and characters that are made of several tokens."""
    said = answer(kind, TOKENIZERS[kind].encode(TEXT.lstrip() if kind == "first" else TEXT, special=False))
    assert said.text == TEXT
    octets = [token.spelling for token in said.logprobs]
    assert b"".join(octets) == TEXT.encode()
    assert any(len(o) > 1 for o in octets) or kind == "bytes"
    assert [t.offset for t in said.logprobs] == [
        len(TEXT.encode()[:start].decode(errors="ignore")) for start in (0, *accumulate(map(len, octets)))
    ][:-1]
    told = for_completion(said.logprobs, 1)
    for text, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert text.startswith("bytes:\\x") or TEXT[offset:].startswith(text)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_parts_of_a_character_are_told_by_their_bytes(kind: str) -> None:
    said = answer(kind, TOKENIZERS[kind].encode("€", special=False)[-3:])
    assert said.text == "€"
    content = for_chat(said.logprobs)["content"]
    assert [entry["token"] for entry in content] == ["\\xe2", "\\x82", "\\xac"]
    assert [entry["bytes"] for entry in content] == [[0xE2], [0x82], [0xAC]]
    assert [entry["top_logprobs"][0]["bytes"] for entry in content] == [[0xE2]] * 3
    told = for_completion(said.logprobs, 1)
    assert told["tokens"] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert told["text_offset"] == [0, 0, 0]
    assert told["top_logprobs"][1] == {"bytes:\\xe2": -1.0, "bytes:\\x82": -0.5}


@given(
    tokens=st.lists(st.integers(0, 255) | st.sampled_from([*"é€😀".encode(), 97]), min_size=1, max_size=20)
)
def test_offsets_in_a_text_of_any_bytes(tokens: list[int]) -> None:
    """A character that is broken off is one too: U+FFFD."""
    said = answer("bytes", tokens)
    assert said.text == bytes(tokens).decode(errors="replace")
    begun = [len(bytes(tokens[: n + 1]).decode(errors="replace")) for n in range(len(tokens))]
    assert [token.offset for token in said.logprobs] == [n - 1 for n in begun]


def test_what_ends_an_answer_lies_at_its_end() -> None:
    tokens = [*"hé".encode(), EOS]
    ended = Request(Sequence(0, [1], 1, 1000, Sampling(logprobs=0), cast(Any, None)), Output(BYTES, ()))
    said = collect([ended.accept(Choice(token, -0.5), BYTES) for token in tokens])
    assert (said.text, said.finish) == ("hé", "stop")
    assert [token.offset for token in said.logprobs] == [0, 1, 1, 2]
    assert for_chat(said.logprobs)["content"][-1] == {
        "token": "", "logprob": -0.5, "bytes": None, "top_logprobs": []
    }  # fmt: skip


def test_a_stop_string_does_not_move_what_is_left() -> None:
    said = answer("bytes", list("€ab.".encode()), stop=("ab",))
    assert said.text == "€"
    assert [token.offset for token in said.logprobs] == [0, 0, 0, 1, 2]
