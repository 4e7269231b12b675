"""The two published scores."""

from __future__ import annotations

import pytest

from octavo.evaluation.ruler import string_match_all, string_match_part
from octavo.evaluation.ruler.score import found_share


@pytest.mark.parametrize(
    ("completion", "references", "share"),
    [
        (" 1234567.", ["1234567"], 1.0),
        ("1234568", ["1234567"], 0.0),
        ("the words ABC and def", ["abc", "DEF", "ghi"], 2 / 3),
        ("", ["x"], 0.0),
        ("a\tb\x00c", ["a\nb\nc"], 1.0),  # control characters count as line ends
    ],
)
def test_found_share(completion: str, references: list[str], share: float) -> None:
    assert found_share(completion, references) == pytest.approx(share)


def test_string_match_all_is_the_mean_share_in_percent() -> None:
    score = string_match_all(["one two", "three", "nothing"], [["one", "two"], ["three", "four"], ["five"]])
    assert score == pytest.approx(100 * (1 + 0.5 + 0) / 3)


def test_string_match_part_needs_any_reference() -> None:
    # One harness averages over the aliases instead; the published score takes the best.
    assert string_match_part(["in Paris", "Rome"], [["paris", "PARIS, France"], ["Oslo"]]) == 50.0
