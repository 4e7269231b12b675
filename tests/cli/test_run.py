"""`octavo run` on a tiny model."""

from __future__ import annotations

from octavo import Engine, Sampling
from tests.cli.conftest import TEXT, Octavo


def test_text_goes_to_stdout_and_the_rest_to_stderr(octavo: Octavo, model: str) -> None:
    ran = octavo("run", model, "-p", "Hello there", "--max-tokens", "6", "--ignore-eos")
    with Engine(model) as engine:
        expected = engine.generate("Hello there", Sampling(6, ignore_eos=True))[0]
    assert ran.status == 0 and ran.out == expected.text + "\n"
    assert f"{expected.usage.prompt_tokens} prompt tokens, 0 cached; 6 generated" in ran.err


def test_json_is_the_only_line_on_stdout(octavo: Octavo, model: str) -> None:
    ran = octavo(
        "run", model, "-p", "Hello there", "--max-tokens", "4", "--ignore-eos", "--json", "-ctv", "q4_0"
    )
    assert ran.out.count("\n") == 1 and ran.json["recipe"] == "q8_0:q4_0"
    assert ran.json["answers"][0]["completion_tokens"] == 4 and ran.json["answers"][0]["finish"] == "length"


def test_the_prompt_may_be_piped(octavo: Octavo, model: str) -> None:
    arguments = ("--max-tokens", "4", "--ignore-eos")
    piped = octavo("run", model, *arguments, stdin=b"Hello there\n")
    assert piped.out == octavo("run", model, "-p", "Hello there", *arguments).out


def test_several_prompts_share_a_document(octavo: Octavo, model: str, document: str) -> None:
    ran = octavo("run", model, "-p", "One?", "-p", "Two?", "--document", document, "-n", "5", "--json")
    first, second = ran.json["answers"]
    assert "read the document" in ran.err
    for answer in (first, second):
        assert answer["cached_tokens"] >= len(TEXT)
        assert answer["prompt_tokens"] - answer["cached_tokens"] < 64


def test_several_prompts_are_printed_in_their_order(octavo: Octavo, model: str) -> None:
    ran = octavo("run", model, "-p", "One?", "-p", "Two?", "-n", "3")
    assert ran.out.index("[1] One?") < ran.out.index("[2] Two?")


def test_several_raw_prompts_continue_the_text(octavo: Octavo, model: str, document: str) -> None:
    ran = octavo("run", model, "--raw", "-p", "One", "-p", "Two", "--document", document, "-n", "2", "--json")
    lengths = [answer["prompt_tokens"] for answer in ran.json["answers"]]
    assert lengths == [len(TEXT) + 3] * 2  # no template: a byte a token


def test_raw_continues_the_text(octavo: Octavo, model: str) -> None:
    chat, raw = (
        octavo("run", model, "-p", "Hello", "-n", "2", "--json", *more).json for more in ((), ("--raw",))
    )
    assert chat["answers"][0]["prompt_tokens"] > raw["answers"][0]["prompt_tokens"]


def test_what_does_not_fit_is_refused(octavo: Octavo, model: str, document: str) -> None:
    for arguments in (
        ["--context", "100"],
        ["--context", "99999", "--dca", "off"],
        ["--context", "99999", "--memory", "1MB"],
        ["--memory", "1KB"],
        ["--memory", "lots"],
    ):
        refused = octavo("run", model, "-p", "x", "--document", document, *arguments)
        assert refused.status in (1, 2) and refused.err.splitlines()[-1].startswith("octavo: error: ")
        assert "Traceback" not in refused.err and refused.out == ""


def test_dual_chunk_attention_says_whether_it_is_on(octavo: Octavo, model: str) -> None:
    run = ("run", model, "--raw", "-p", "Hello", "-n", "1")
    assert "Dual Chunk Attention" not in octavo(*run).err
    assert "in chunks of 1024 tokens: asked for" in octavo(*run, "--dca", "on").err
    ignored = octavo(*run, "--dca-chunk", "64")
    assert ignored.status == 0 and "stays off: a context of 4096 is within the 4096" in ignored.err
