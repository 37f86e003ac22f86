import pytest

from turnlog.provenance import atoms
from turnlog.provenance.atoms import atoms_of, fold, plain


def folded(text: str) -> list[bytes]:
    return [word for spelt in fold(plain(text)).split() if (word := atoms.trim(spelt))]


@pytest.mark.parametrize(
    "other",
    [
        "ORDER  Ord-99812\nfor bob@example.com",
        "order 'ORD-99812' (for bob@example.com).",
        "\uff4frder \u201cord-99812\u201d for bob@example.com",
        "order ORD-99812 // for\n- bob@example.com",
        "order \u2192\u00abORD\u201199812\u00bb \u2026 for \U0001f4e7bob@example.com\u3002",
        "or\u00adder ORD-\u200b99812 for\ufffdbob@example.com",
        "order \x1b[1;31mORD-99812\x1b[0m for bob@\x1b[Kexample.com",
        "~order~ _ORD-99812_ for **bob@example.com**",
    ],
)
def test_a_reformatted_text_folds_to_the_same_words(other: str) -> None:
    assert folded(other) == folded("order ORD-99812 for bob@example.com")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234,567.50 EUR", "1234567.5"),
        ("1'234'567 CHF", "1234567"),
        ("9_876_543 bytes", "9876543"),
        ("12345.00", "12345"),
        ("12345.50 in total", "12345.5"),
        ("it took 12345us", "12345"),
        ("\u20ac12345 paid", "12345"),
        ("C:\\Temp\\a1.txt", "c:/temp/a1.txt"),
        ("see src/app.py:12:", "src/app.py"),
        ("see ./src/app.py", "src/app.py"),
        ("/srv/app/src/item_1.py", "srv/app/src"),
        ("in /srv/app/src/item_1.py", "srv/app"),
        ("https://api.example.com/v1/items/abc-123?x=QQ88812", "abc-123"),
        ("https://api.example.com/v1/items/abc-123?x=QQ88812", "qq88812"),
        ("https://api.example.com/?file=%2Fsrv%2Fmy%20notes.md", "srv/my notes.md"),
        ("| 7 | Jane Elizabeth Doe | Berlin |", "jane elizabeth doe"),
        ("name          Jane Elizabeth Doe", "jane elizabeth doe"),
        ("name: Jane Elizabeth Doe", "jane elizabeth doe"),
        ("ORD-99812", "ord-99812"),
    ],
)
def test_a_text_has_the_atom_of_a_value_in_it(text: str, value: str) -> None:
    assert hash(value.encode()) in atoms_of(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10.0.0.10 is up", "10.0.0.1"),
        ("build-1,234 of 5", "1"),
        ("a/" * 20 + "b", "a/a"),
        ("100% done, 5% left", "d"),
    ],
)
def test_a_text_has_no_atom_of_what_only_looks_like_a_value(text: str, value: str) -> None:
    assert hash(value.encode()) not in atoms_of(text)


def test_prose_has_shingles_and_a_table_of_numbers_has_none() -> None:
    prose = b"the quick brown fox jumps over"
    assert len(atoms.shingles(prose.split())) == 2
    assert len(atoms.some_shingles(prose.split())) == 1
    assert not atoms.shingles(prose.split()[:4])
    assert set(atoms.shingles(prose.split())) < set(atoms_of(prose.decode()))
    assert len(atoms_of("12 13 14 15 16 17")) == 7  # the words and the line


def test_separators_of_thousands_are_removed_from_a_text() -> None:
    assert atoms.without_groups(b"pay 1,234.50 or 1'000") == b"pay 1234.50 or 1000"
    assert atoms.without_groups(b"a, b") == b"a, b"


@pytest.mark.parametrize(
    "token",
    ["4711", "src/app", "a@b.example", "ord-12", "etc/hosts", "deadbeef01", "10.2.3.4", "v1.2.3x"],
)
def test_these_words_are_entities_anywhere(token: str) -> None:
    assert atoms.is_entity(token.encode(), alone=False)


@pytest.mark.parametrize("token", ["config.yaml", "feature-branch"])
def test_these_words_are_entities_only_if_they_are_the_whole_argument(token: str) -> None:
    assert atoms.is_entity(token.encode(), alone=True)
    assert not atoms.is_entity(token.encode(), alone=False)


@pytest.mark.parametrize(
    "token", ["1.5", "in_progress", "needs_more_information", "read-only", "1000", "30000"]
)
def test_small_and_enum_like_words_are_no_entities(token: str) -> None:
    assert not atoms.is_entity(token.encode(), alone=True)


@pytest.mark.parametrize("token", ["123", "utf-8", "word", "sha256"])
def test_short_and_common_words_cannot_be_values(token: str) -> None:
    assert not atoms.may_be_word(token.encode())


def test_a_whole_argument_may_be_of_letters_alone_but_not_the_name_of_a_format() -> None:
    assert atoms.may_be_value(b"administrator")
    assert not atoms.may_be_value(b"application/json")
    assert not atoms.may_be_value(b"")


@pytest.mark.parametrize(
    "value",
    [
        "12345",
        "ord-991",
        "a1b2c3d4",
        "src/main.c",
        "bob@a.io",
        "connection refused",
        "my-branch-is",
    ],
)
def test_long_values_and_values_with_digits_are_strong(value: str) -> None:
    assert atoms.is_strong_value(value.encode())


@pytest.mark.parametrize(
    "value",
    [
        "1000000",
        "pull_request_review",
        "internationalization",
        "4711",
        "2026-11-30",
        "v1.2.3",
        "main.py",
        "not available"[:11],
    ],
)
def test_short_numbers_names_and_dates_are_weak(value: str) -> None:
    assert not atoms.is_strong_value(value.encode())


def test_in_a_long_text_only_values_with_digits_or_slashes_and_long_phrases_are_strong() -> None:
    for value in (b"ord-99812", b"src/main.py", b"bob@a.io", b"a phrase of more than five words"):
        assert atoms.is_strong_in_text(value)
    for value in (b"self.file_name", b"@dataclass.field", b"raise not implemented", b"4711"):
        assert not atoms.is_strong_in_text(value)


def test_what_stands_between_quotes_is_a_phrase() -> None:
    assert atoms.quoted(fold(b"say 'Connection refused by peer', please")) == [
        b"connection refused by peer"
    ]
    assert atoms.quoted(fold(b"say \"too short\" and 'one, or more, commas'")) == []


def test_a_server_or_a_file_name_is_a_weak_part_and_an_identifier_a_strong_one() -> None:
    assert not atoms.is_strong_part(b"api.example.com")
    assert not atoms.is_strong_part(b"requirements.txt")
    assert atoms.is_strong_part(b"abc-12345")
    assert atoms.is_strong_part(b"docs/requirements.txt")


def test_a_path_has_parts_and_folders_and_a_date_has_none() -> None:
    assert atoms.parts(b"https://a.example:80/b/c") == [
        *(b"https", b"a.example", b"80/b/c"),
        *(b"https", b"a.example", b"80", b"b", b"c"),
    ]
    assert atoms.parts(b"2026-11-30t04:50:37z") == []
    assert atoms.labels(b"2026-11-30t04:50:37.123z") == atoms.labels(b"12345.67") == []
    assert atoms.labels(b"abc-12345") == atoms.labels(b"a." * 200) == []
    assert atoms.labels(b"https://ab.example/c@d") == [b"https", b"ab", b"example", b"c", b"d"]
    assert atoms.below_folders(b"srv/app/a.py") == [b"a.py", b"app/a.py"]
    assert atoms.below_folders(b"a/" * 20) == []
