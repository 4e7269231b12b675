"""Length accounting, refusals and the user's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.errors import InvalidFile, InvalidRequest, UnknownName
from octavo.evaluation.ruler import TASK_NAMES, Fitter, Prompter, Sources, get_tasks
from octavo.evaluation.ruler.qa import read_hotpotqa, read_squad
from octavo.model.builtin import builtin
from tests.evaluation.words import WordTokenizer


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """Made-up data of the published shapes: paragraphs of 20 to 80 short words, 24 an article."""
    essay = tmp_path / "essay.txt"
    essay.write_text(" ".join(f"The {n}th boat left the harbour at dawn. Nobody saw it." for n in range(300)))
    squad = {"data": [{"paragraphs": [_paragraph(a, p) for p in range(24)]} for a in range(4)]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    hotpot = [_hotpot(n) for n in range(60)]
    (tmp_path / "hotpot.json").write_text(json.dumps(hotpot))
    return Sources(essay, tmp_path / "squad.json", tmp_path / "hotpot.json")


def _text(n: int) -> str:
    words = ["the", "river", f"n{n}", "ran", "by", "an", "old", "mill", "and", "some", "trees"]
    return " ".join(words[i % 11] for i in range(20 + n * 37 % 61))


def _paragraph(article: int, n: int) -> dict[str, object]:
    answers = [{"text": f"n{article * 24 + n}"}, {"text": "other"}]
    good = {"question": f"What is in {article}-{n}?", "answers": answers, "is_impossible": False}
    bad = {"question": "What is not?", "answers": [], "is_impossible": True}
    return {"context": _text(article * 24 + n), "qas": [good, bad]}


def _hotpot(n: int) -> dict[str, object]:
    context = [[f"Title {n}-{i}", [_text(n * 3 + i) + ".", " More."]] for i in range(3)]
    return {"question": f"Who is {n}?", "answer": f"word{n}", "context": context}


@pytest.mark.parametrize("name", TASK_NAMES)
@pytest.mark.parametrize("length", [1024, 4096])
@pytest.mark.parametrize("chat", [True, False])
def test_within_the_limit_and_two_percent_of_it(name: str, length: int, chat: bool, sources: Sources) -> None:
    tokenizer = WordTokenizer()
    [task] = get_tasks([name], sources, lambda text: len(tokenizer.encode(text)))
    prompter = Prompter(tokenizer, chat=chat)
    for sample in Fitter(task, prompter, length).samples(3):
        assert sample.tokens == len(prompter.tokens(sample.draft)) + task.max_tokens
        assert list(sample.prompt_tokens) == prompter.tokens(sample.draft)
        assert 0.98 * length <= sample.tokens <= length


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2-135m", "gemma3-270m"])
@pytest.mark.parametrize("length", [1024, 2048, 4096, 8192])
def test_within_two_percent_on_real_tokenizers(model: str, length: int, sources: Sources) -> None:
    if not builtin(model).installed:
        pytest.skip(f"{model} is not installed")
    from octavo.evaluation.setup import load_tokenizer

    tokenizer = load_tokenizer(model)
    prompter = Prompter(tokenizer)
    for task in get_tasks(TASK_NAMES, sources, lambda text: len(tokenizer.encode(text, special=False))):
        for sample in Fitter(task, prompter, length).samples(3):
            assert 0.98 * length <= sample.tokens <= length, task.name


def test_chat_puts_the_prefix_behind_the_assistants_header() -> None:
    tokenizer = WordTokenizer()
    [task] = get_tasks(["niah_single_1"], Sources(), len)
    sample = Fitter(task, Prompter(tokenizer), 1024).sample(0)
    text = tokenizer.decode(sample.prompt_tokens)
    assert text == f"<user>{sample.draft.prompt}</user><assistant>{sample.draft.prefix}"
    base = Fitter(task, Prompter(tokenizer, chat=False), 1024).sample(0)
    assert tokenizer.decode(base.prompt_tokens) == base.draft.prompt + base.draft.prefix
    with pytest.raises(InvalidRequest, match="no chat template"):
        Prompter(WordTokenizer(has_chat=False), chat=True)


def test_qa_files_are_read_as_published(sources: Sources) -> None:
    assert sources.squad and sources.hotpotqa
    squad = read_squad(sources.squad)
    assert len(squad.documents) == 96 and len(squad.questions) == 96
    first = squad.questions[0]
    assert first.answers == ("n0", "other") and len(first.related) == 23
    assert squad.documents[first.needed[0]] == _text(0)
    hotpot = read_hotpotqa(sources.hotpotqa)
    assert hotpot.questions[5].answers == ("word5",)
    assert hotpot.documents[hotpot.questions[5].needed[0]] == f"Title 5-0\n{_text(15)}. More."


def test_qa_prompt_is_the_published_one(sources: Sources) -> None:
    tokenizer = WordTokenizer()
    [task] = get_tasks(["qa_1"], sources, len)
    draft = Fitter(task, Prompter(tokenizer), 2048).sample(4).draft
    rule = (
        "Answer the question based on the given documents. "
        "Only give me the answer and do not output any other words."
    )
    assert draft.prompt.startswith(f"{rule}\n\nThe following are given documents.\n\nDocument 1:\n")
    assert draft.prompt.endswith(f"\n\n{rule}\n\nQuestion: What is in 0-4?")
    assert _text(4) in draft.prompt and draft.prefix == " Answer:"
    assert task.metric == "part" and task.max_tokens == 32


@pytest.mark.parametrize(
    ("name", "option"), [("niah_single_2", "--essay"), ("qa_1", "--squad"), ("qa_2", "--hotpotqa")]
)
def test_tasks_without_their_file_are_refused(name: str, option: str) -> None:
    with pytest.raises(InvalidRequest, match=option):
        get_tasks(["niah_single_1", name], Sources(), len)


@pytest.mark.parametrize("data", ["3", "[]", '{"data": 3}', '{"data": [{"x": 1}]}', '[{"question": "x"}]'])
def test_other_json_is_refused(data: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(data)
    for read in (read_squad, read_hotpotqa):
        with pytest.raises(InvalidFile, match=r"is JSON, but not|holds no answerable question"):
            read(path)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="niah_single_1"):
        get_tasks(["niah_single1"], Sources(), len)
    [task] = get_tasks(["niah_single_1"], Sources(), len)
    with pytest.raises(InvalidRequest, match=r"length 128 is too short .* take \d+ tokens"):
        Fitter(task, Prompter(WordTokenizer()), 128)
    [words] = get_tasks(["cwe"], Sources(), len)
    with pytest.raises(InvalidRequest, match="word list ends"):
        Fitter(words, Prompter(WordTokenizer()), 400_000)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InvalidFile, match="not SQuAD"):
        get_tasks(["qa_1"], Sources(squad=tmp_path / "bad.json"), len)
    (tmp_path / "short.txt").write_text("Too short.")
    with pytest.raises(InvalidFile, match="2 words"):
        get_tasks(["niah_single_2"], Sources(essay=tmp_path / "short.txt"), len)
