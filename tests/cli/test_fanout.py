"""`octavo bench fanout`: its numbers, and files of agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.agents import made_up, read_agents
from octavo.errors import InvalidFile
from octavo.model.tokenizer import Tokenizer
from tests.cli.conftest import TEXT, Octavo
from tests.tiny import byte_tokenizer

KEYS = "agents document_tokens tokens_computed tokens_naive cells cells_naive ratio bytes bytes_dense"


@pytest.mark.parametrize("cold", [False, True])
def test_the_document_is_counted_once(octavo: Octavo, model: str, document: str, cold: bool) -> None:
    arguments = ("--agents", "5", "--suffix-tokens", "20", "-n", "8", *(["--cold"] if cold else []))
    ran = octavo("bench", "fanout", model, "--document", document, *arguments, "--json")
    found = ran.json
    assert ran.status == 0 and set(KEYS.split()) <= set(found)
    tokens = found["document_tokens"]
    assert tokens >= len(TEXT) and found["agents"] == 5
    assert tokens + 5 * 20 <= found["tokens_computed"] <= tokens + 5 * (20 + 63)
    assert found["tokens_naive"] == 5 * (tokens + 20) and found["tokens_generated"] == 5 * 8
    assert found["cells_naive"] == 5 * (tokens + 20 + 7)
    assert tokens + 5 * 27 <= found["cells"] <= tokens + 64 + 5 * 128
    assert found["ratio"] == pytest.approx(found["cells_naive"] / found["cells"])
    assert found["bytes_dense"] == found["cells_naive"] * 2 * 2 * 2 * 64 * 2
    assert found["pages_shared"] + found["pages_private"] == found["cells"] // 64


def test_the_document_can_be_cut(octavo: Octavo, model: str, document: str) -> None:
    cut = octavo(
        "bench", "fanout", model, "--document", document, "--document-tokens", "300", "-n", "2", "--json"
    )
    assert cut.json["document_tokens"] == 300
    long = octavo("bench", "fanout", model, "--document", document, "--document-tokens", "99999")
    assert long.status == 2 and "99,999 were asked for" in long.err


def agents_file(folder: Path, text: str) -> str:
    path = folder / "agents.toml"
    path.write_text(text)
    return str(path)


GOOD = """
raw = true
stop = ["\\n"]
layout = "\\n{instructions}\\nQ: {question}\\nA:"
[[agent]]
name = "one"
instructions = "Be brief."
question = "How many?"
expect = "never said by a random model"
[[agent]]
name = "two"
question = "Who?"
"""


def test_agents_from_a_file_answer_and_are_checked(
    octavo: Octavo, model: str, document: str, tmp_path: Path
) -> None:
    path = agents_file(tmp_path, GOOD)
    cast = read_agents(path, None)
    assert [a.prompt for a in cast.agents] == ["\nBe brief.\nQ: How many?\nA:", "\n\nQ: Who?\nA:"]
    assert cast.raw and cast.stop == ("\n",)
    ran = octavo("bench", "fanout", model, "--document", document, "--questions", path, "-n", "4")
    assert ran.status == 0 and "one: How many?" in ran.out and "prompt tokens computed" in ran.out
    assert "[expected: never said by a random model]" in ran.out


def test_agents_may_use_the_chat_template(octavo: Octavo, model: str, document: str, tmp_path: Path) -> None:
    path = agents_file(tmp_path, "[[agent]]\nname = 'a'\nquestion = 'Why?'\n")
    fanout = octavo(
        "bench", "fanout", model, "--document", document, "--questions", path, "-n", "3", "--json"
    )
    run = octavo("run", model, "--document", document, "-p", "\n\nWhy?", "-n", "3", "--json")
    (ours,), (theirs,) = fanout.json["answers"], run.json["answers"]
    assert (ours["text"], ours["prompt_tokens"]) == (theirs["text"], theirs["prompt_tokens"])


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("agent = 3", "must be a list"),
        ("x = 3", "unknown setting 'x'"),
        ("[[agent]]\nname = 'a'", "has no question"),
        ("[[agent]]\nname = 'a'\nquestoin = 'b'", "did you mean 'question'"),
        ("[[agent]]\nname = 1\nquestion = 'b'", "must be a str"),
        ("agent = [1]", "write it as an"),
        ("raw = true", "has no"),
        ("[[agent", "is not TOML"),
    ],
)
def test_wrong_files_are_told(tmp_path: Path, text: str, fact: str) -> None:
    with pytest.raises(InvalidFile, match=fact):
        read_agents(agents_file(tmp_path, text), None)


def test_more_agents_than_in_the_file_are_refused(
    octavo: Octavo, model: str, document: str, tmp_path: Path
) -> None:
    path = agents_file(tmp_path, GOOD)
    refused = octavo("bench", "fanout", model, "--document", document, "--questions", path, "--agents", "3")
    assert refused.status == 2 and "3 agents were asked for" in refused.err


def test_made_up_agents_have_the_length_asked_for() -> None:
    cast = made_up(Tokenizer(byte_tokenizer()), 12, 24)
    prompts = [tuple(a.prompt) for a in cast.agents]
    assert {len(p) for p in prompts} == {24} and len(set(prompts)) == 12


def test_a_length_that_nobody_is_given_is_refused(
    octavo: Octavo, model: str, document: str, tmp_path: Path
) -> None:
    questions = tmp_path / "agents.toml"
    questions.write_text('[[agent]]\nname = "a"\nquestion = "Why?"\n')
    asked = ("--questions", str(questions), "--suffix-tokens", "9")
    ran = octavo("bench", "fanout", model, "--document", document, *asked)
    assert ran.status == 2 and "--suffix-tokens is the length of made-up prompts" in ran.err
