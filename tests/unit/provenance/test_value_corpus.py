"""The bounds of the look-up on the labelled corpus, which `make bench-values` prints in full."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import pytest

from kit.value_corpus import BLIND, CHANGES, LOOKALIKES, Judged, judge, make_session

SESSIONS = 12


@cache
def by_change() -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = defaultdict(list)
    for number in range(SESSIONS):
        for judged in judge(make_session(f"bounds-{number}")):
            found[judged.case.change].append(judged)
    return found


def share(judged: Iterable[bool]) -> float:
    answers = list(judged)
    assert len(answers) >= 20, "too few cases to speak of a share"
    return sum(answers) / len(answers)


@pytest.mark.parametrize("change", CHANGES)
def test_values_are_found_when_they_are_copied_or_reformatted(change: str) -> None:
    assert share(judged.is_found for judged in by_change()[change]) >= 0.95


def test_values_are_found_with_evidence_that_rules_act_on() -> None:
    judged = [one for change in CHANGES for one in by_change()[change]]
    assert share(one.is_sure for one in judged) >= 0.95


@pytest.mark.parametrize("alike", LOOKALIKES)
def test_values_that_only_look_alike_are_not_found(alike: str) -> None:
    assert share(judged.is_sure for judged in by_change()[alike]) <= 0.02


@pytest.mark.parametrize("alike", LOOKALIKES)
def test_values_that_only_look_alike_do_not_count_as_sourced(alike: str) -> None:
    # A phrase or prose is not unverified by itself: it is left out of the question.
    entities = [one for one in by_change()[alike] if one.case.kind not in ("phrase", "prose")]
    assert share(one.is_found and not one.is_unverified for one in entities) <= 0.02


@pytest.mark.parametrize("change", CHANGES)
def test_a_copied_value_is_not_unverified_unless_it_became_part_of_a_new_url(change: str) -> None:
    if change != "in a URL":
        assert share(judged.is_unverified for judged in by_change()[change]) <= 0.02


@pytest.mark.parametrize(
    "change", ["base64", "hexadecimal", "paraphrase", "arithmetic", "a date in another form"]
)
def test_what_the_documentation_calls_a_blind_spot_is_one(change: str) -> None:
    assert change in BLIND
    assert share(judged.is_sure for judged in by_change()[change]) <= 0.05


def test_a_seed_makes_the_same_session_again() -> None:
    assert make_session("again") == make_session("again") != make_session("other")
