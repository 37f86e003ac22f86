import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.redaction.redact import Redactor
from turnlog.rules.pattern import any_of, compile_pattern, find_any

EXPRESSIONS = [r"a+", r"(a+)+$", r"[^b]x?", r".", r"\w+@\w+", r"\pL", r"^.{2}", r"(?i)AB", r"x*"]
TEXTS = st.text(st.characters(categories=["L", "N", "P", "Z", "Cs"]) | st.sampled_from("abx@"))


@pytest.mark.promise("RULE-30")
def test_an_expression_that_makes_backtracking_explode_takes_linear_time() -> None:
    # Python's `re` needs 2^31 steps for the first of these texts, and 2^100,000 for the other.
    mine = Redactor((), (), [r"(a+)+$"])

    for text in ("a" * 31 + "!", "a" * 100_000 + "!"):
        assert mine.text(text) == (text, False)
        assert mine.json(f'"{text}"'.encode()).touched is False


@pytest.mark.parametrize("wanted", ["(", r"(?=a)b", r"(a)\1", "a{2000}"])
def test_an_expression_that_re2_does_not_know_is_refused_with_the_reason(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        compile_pattern(wanted)


@given(st.sampled_from(EXPRESSIONS), TEXTS)
def test_any_text_can_be_searched_and_replaced(wanted: str, text: str) -> None:
    mine = compile_pattern(wanted)

    cut = mine.replaced(text, "")

    assert (cut != text) == mine.has_match(text)
    assert mine.is_in(text) or not mine.has_match(text)


def test_a_match_on_a_part_of_a_character_is_replaced() -> None:
    assert "[redacted]" in compile_pattern(r"\C").replaced("\ud800é", "[redacted]")


def test_a_partial_character_keeps_its_bytes() -> None:
    assert compile_pattern(r"a\C").replaced("aé", "x") == "x\udca9"


@pytest.mark.parametrize("text", [b"an Error", b"a WARNING", "\u274c".encode(), b"\xff error"])
def test_any_of_several_expressions_is_found_in_bytes_in_upper_or_lower_case(text: bytes) -> None:
    assert any_of(["error", "warn(?:ing)?", "\u274c"])(text)


def test_bytes_that_are_no_utf_8_are_searched() -> None:
    word = compile_pattern("error")
    assert word.is_in_bytes(b"\xff error \xfe")
    assert not word.is_in_bytes(b"\xff warning")


def test_the_first_of_several_expressions_is_found_from_a_place_on() -> None:
    found = find_any(["error", "warning"])(b"Error, a WARNING", 1)
    assert found.span() == (9, 16)


def test_a_row_that_matches_none_of_several_expressions_is_not_found() -> None:
    assert not any_of(["error", "warning"])(b"all is well")


def test_expressions_too_many_to_be_searched_at_once_are_found_in_every_text() -> None:
    many = [f"{number}-[a-z0-9]{{900}}x" for number in range(1700)]
    assert any_of(many)(b"all is well")
    assert find_any(many)(b"all is well", 3).span() == (3, 3)
