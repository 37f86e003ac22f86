"""Hints of errors, and the words that each surface has for them."""

from turnlog.core.hints import Hint, HintedError, in_words

WORDS = {Hint.SESSIONS: "`list` shows them", Hint.LATER_STATE: "ask for {} or what follows {}"}


def test_an_error_is_followed_by_its_hint() -> None:
    error = HintedError("no such session", Hint.SESSIONS)
    assert in_words(error, WORDS) == "no such session; `list` shows them"
    assert str(error) == "no such session"


def test_the_subject_of_a_hint_stands_in_its_words() -> None:
    error = HintedError("it is compacted", Hint.LATER_STATE, "7")
    assert in_words(error, WORDS) == "it is compacted; ask for 7 or what follows 7"


def test_an_error_without_a_hint_or_words_for_it_is_its_text() -> None:
    assert in_words(HintedError("no such call"), WORDS) == "no such call"
    assert in_words(HintedError("no such call", Hint.CALLS), WORDS) == "no such call"
    assert in_words(ValueError("no"), WORDS) == "no"
