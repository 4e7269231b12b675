"""RULER prompts against the published definitions (github.com/NVIDIA/RULER, scripts/data/synthetic), by hand.

Published generators draw all samples from one random stream; here each sample has its own, so the drawn
words differ and the wording is what these tests pin. Two differences of other harnesses are pinned as
published: vt's prefix says "assigned", and vt's noise lines are joined by newlines.
"""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from octavo.evaluation.ruler import TASK_NAMES, Draft, Fitter, Prompter, Sources, Task, get_tasks
from octavo.evaluation.ruler.aggregate import CommonWords, FrequentWords
from octavo.evaluation.ruler.niah import Essay, Niah, NiahShape
from octavo.evaluation.ruler.vt import VariableTracking
from octavo.evaluation.ruler.words import word_list
from tests.evaluation.words import WordTokenizer

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def draw(task: Task, units: int, length: int = 4096) -> Draft:
    return task.draw(Random("golden"), units, 0, length)


def test_niah_single_1_is_the_published_prompt() -> None:
    draft = draw(Niah("niah_single_1", NiahShape("noise")), 3)
    key = re.search(r"magic numbers for (\S+) is: (\d{7})\.", draft.prompt)
    assert key is not None
    needle = f"One of the special magic numbers for {key[1]} is: {key[2]}."
    before, after = draft.prompt.split(needle)
    assert before == (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n" + f"{NOISE}\n" * before.count(NOISE)
    )
    assert after == (
        f"\n{NOISE}" * after.count(NOISE)
        + f"\nWhat is the special magic number for {key[1]} mentioned in the provided text?"
    )
    assert draft.prefix == f" The special magic number for {key[1]} mentioned in the provided text is"
    assert draft.references == (key[2],)
    assert draft.prompt.count(NOISE) == 3


def test_niah_multiquery_lists_its_keys_and_speaks_in_the_plural() -> None:
    essay = Essay("One two three. Four five six. Seven eight nine. " * 40)
    draft = draw(Niah("niah_multiquery", NiahShape("essay", queries=4), essay), 300)
    found = dict(re.findall(r"One of the special magic numbers for (\S+) is: (\d{7})\.", draft.prompt))
    listed = re.search(r"special magic numbers for (.*) mentioned in the provided text\?$", draft.prompt)
    assert listed is not None
    keys = re.split(r", and |, ", listed[1])
    assert len(keys) == 4 and listed[1] == f"{keys[0]}, {keys[1]}, {keys[2]}, and {keys[3]}"
    assert draft.references == tuple(found[key] for key in keys)
    assert draft.prompt.startswith(
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the numbers afterwards.\nOne two three."
    )
    assert draft.prefix == f" The special magic numbers for {listed[1]} mentioned in the provided text are"


@pytest.mark.parametrize(
    ("name", "needles", "references", "value"),
    [
        ("niah_single_2", 1, 1, r"\d{7}"),
        ("niah_single_3", 1, 1, r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"),
        ("niah_multikey_1", 4, 1, r"\d{7}"),
        ("niah_multivalue", 4, 4, r"\d{7}"),
        ("niah_multikey_2", 31, 1, r"\d{7}"),
        ("niah_multikey_3", 31, 1, r"[0-9a-f-]{36}"),
    ],
)
def test_niah_counts(name: str, needles: int, references: int, value: str, tmp_path: Path) -> None:
    essay = tmp_path / "essay.txt"
    essay.write_text("Water runs. Stones stay. Birds sing in the wood. " * 60)
    [task] = get_tasks([name], Sources(essay=essay), len)
    units = 30 if name in ("niah_multikey_2", "niah_multikey_3") else 400
    draft = draw(task, units)
    assert len(re.findall("One of the special magic", draft.prompt)) == needles
    assert len(draft.references) == references
    for reference in draft.references:
        assert re.fullmatch(value, reference)
        assert f" is: {reference}." in draft.prompt


def test_essay_sentences_give_the_text_back() -> None:
    text = 'He said: "Go!" Then (at 5.30 p.m.) they went. Was it late? It was... Mr. Hale knew.'
    essay = Essay(text)
    assert " ".join(essay.sentences(len(essay.words))) == text
    assert essay.sentences(len(essay.words))[:2] == ['He said: "Go!"', "Then (at 5.30 p.m.) they went."]
    assert " ".join(essay.sentences(20)).split() == (essay.words * 2)[:20]


def test_vt_is_the_published_prompt() -> None:
    draft = draw(VariableTracking(example_lines=5), 6)
    shown, asked = draft.prompt.split("\n\nMemorize", 1)
    names, value = draft.references, re.findall(r"assigned the value (\d{5}) in", asked)[0]
    lines = asked.split("\n\n", 1)[1].split("\nQuestion: ")[0].split("\n")
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {new} = VAR {old} " for old, new in pairwise(names)]
    assert [line for line in lines if line != NOISE] == chain
    assert lines.count(NOISE) == 6 and all(re.fullmatch("[A-Z]{5}", name) for name in names)
    head = " and track the chain(s) of variable assignment hidden in the following text.\n\n"
    assert asked.startswith(head)
    assert asked.endswith(
        f"\nQuestion: Find all variables that are assigned the value {value} in the text above."
    )
    assert draft.prefix == (
        " Answer: According to the chain(s) of variable assignment in the text above, 5 variables are "
        f"assigned the value {value}, they are: "
    )
    example = re.search(r"5 variables are assigned the value \d{5}, they are:  ((?:[A-Z]{3} ?){5})$", shown)
    assert example is not None and len(set(example[1].split())) == 5


def test_vt_example_stays_within_500_tokens() -> None:
    tokenizer = WordTokenizer()
    lines = VariableTracking.example_lines(lambda text: len(tokenizer.encode(text)))
    task = VariableTracking(lines)
    example = draw(task, 6).prompt.split("\n\nMemorize")[0] + "\n"
    assert lines % 5 == 0
    more = 5 * len(tokenizer.encode(NOISE + "\n"))
    assert len(tokenizer.encode(example)) <= 500 < len(tokenizer.encode(example)) + more


def test_cwe_is_the_published_prompt() -> None:
    for length, times, other, shown in ((4096, 30, 3, 40), (1024, 6, 1, 20)):
        draft = draw(CommonWords(), 25, length)
        example, asked = draft.prompt.split("\nBelow is a numbered list of words.")
        words = re.sub(r"^.*appear most often\.\n|\nQuestion.*$", "", asked, flags=re.DOTALL)
        listed = re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", words)
        assert [int(n) for n, _ in listed] == list(range(1, len(listed) + 1))
        counts = sorted({[w for _, w in listed].count(w) for _, w in listed})
        assert counts == [other, times]
        assert len(listed) == 10 * times + 15 * other
        assert all([w for _, w in listed].count(r) == times for r in draft.references)
        assert len(draft.references) == 10
        assert asked.endswith("\nQuestion: What are the 10 most common words in the above list?")
        assert draft.prefix == " Answer: The top 10 words that appear most often in the list are:"
        head = "Below is a numbered list of words. In these words, some appear more often than others. "
        assert example.startswith(head + "Memorize the ones that appear most often.\n1. ")
        assert " Answer: The top 10 words that appear most often in the list are: 1. " in example
        assert example.count(". ") > shown


def test_fwe_is_the_published_prompt() -> None:
    draft = draw(FrequentWords(), 900, 4096)
    head = (
        "Read the following coded text and track the frequency of each coded word. Find the three most "
        "frequently appeared coded words. "
    )
    tail = (
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
        "frequently appeared words in the above coded text?"
    )
    assert draft.prompt.startswith(head) and draft.prompt.endswith(tail)
    words = draft.prompt.removeprefix(head).removesuffix(tail).split(" ")
    counts = {word: words.count(word) for word in set(words)}
    # α = 2: the k-th word ⌊900 · k⁻² / ζ(2)⌋ times
    assert [counts["..."], *(counts[r] for r in draft.references)] == [547, 136, 60, 34]
    assert all(re.fullmatch("[a-z]{6}", word) for word in counts if word != "...")
    assert draft.prefix == (
        " Answer: According to the coded text above, the three most frequently appeared words are:"
    )


SEEDED = {
    "niah_single_1": "a0c474bc27cd122c",
    "niah_multikey_3": "206877e1bae0d126",
    "vt": "658216426c2897c9",
    "cwe": "7b3836dad21a5918",
    "fwe": "53c0688d622f6275",
}


@pytest.mark.parametrize("name", SEEDED)
def test_same_seed_same_sample_on_any_machine(name: str) -> None:
    tokenizer = WordTokenizer()
    [task] = get_tasks([name], Sources(), lambda text: len(tokenizer.encode(text)))
    fitter = Fitter(task, Prompter(tokenizer), 1500)
    many, one = list(fitter.samples(3)), Fitter(task, Prompter(tokenizer), 1500).sample(2)
    assert many[2].draft == one.draft
    text = "\0".join(s.draft.prompt + s.draft.prefix for s in many)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == SEEDED[name]
    assert many[0].draft != many[1].draft
    assert Fitter(task, Prompter(tokenizer), 1500, seed=7).sample(0).draft != many[0].draft


def test_there_are_thirteen_tasks() -> None:
    assert len(TASK_NAMES) == len(set(TASK_NAMES)) == 13


@pytest.mark.parametrize("kind", ["noun", "adjective", "verb"])
def test_word_lists_are_those_of_wonderwords(kind: str) -> None:
    wonderwords = pytest.importorskip("wonderwords")
    asset = Path(wonderwords.__file__).parent / "assets" / f"{kind}list.txt"
    theirs = {line.strip() for line in asset.read_text().splitlines()}
    assert list(word_list(f"{kind}s")) == sorted(theirs)
