"""`store.log.keys`: the bytes under which things are found."""

from hypothesis import example, given
from hypothesis import strategies as st

from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind, Flag
from turnlog.store.log import keys

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=600)
LONGEST = 511
SESSION = bytes(16)


@given(one=st.integers(0, 2**64 - 1), other=st.integers(0, 2**64 - 1))
def test_numbers_sort_as_their_bytes(one: int, other: int) -> None:
    assert (keys.number(one) < keys.number(other)) == (one < other)
    assert keys.unpack(keys.number(one)) == one


@given(numbers=st.lists(st.integers(0, 2**64 - 1)))
def test_packed_numbers_come_back(numbers: list[int]) -> None:
    assert list(keys.unpack_many(keys.pack_many(numbers))) == numbers


@given(server=names, tool=names)
@example(server="files", tool="read_file")
@example(server="", tool="x" * 32)
@example(server="\0", tool="\0")
def test_a_tools_term_fits_and_tells_the_tool_or_nothing(server: str, tool: str) -> None:
    term = keys.tool_term(server, tool)
    assert len(term) + 8 <= LONGEST
    assert keys.read_tool_term(term) in ((server, tool), None)


def test_common_tools_can_be_read_from_their_term() -> None:
    term = keys.tool_term("files", "read_file")
    assert keys.read_tool_term(term) == ("files", "read_file")


@given(one=names, other=names)
def test_names_have_keys_of_their_own_that_fit(one: str, other: str) -> None:
    assert len(keys.alias_key(one)) <= LONGEST
    assert (keys.alias_key(one) == keys.alias_key(other)) == (one == other)
    assert len(keys.text_term(keys.ERROR, one)) + 8 <= LONGEST
    assert len(keys.link_key(one.encode())) <= LONGEST


@given(name=names, rest=names)
def test_a_name_is_found_by_how_its_key_begins(name: str, rest: str) -> None:
    assert keys.alias_key(name + "\x1f" + rest).startswith(keys.alias_prefix(name))


def test_a_commit_is_posted_under_what_it_says() -> None:
    intent = Facts(kind=CommitKind.INTENT, at=0, clock=0, server="s", tool="t", error="no")
    assert keys.terms_of(intent, SESSION) == [keys.tool_term("s", "t")]
    outcome = Facts(
        kind=CommitKind.OUTCOME,
        at=0,
        clock=0,
        error="timeout",
        error_kind="idle",
        flags=(Flag.LATE, Flag.BOM),
    )
    assert sorted(keys.terms_of(outcome, SESSION)) == [
        b"etimeout\0",
        b"fbom\0",
        b"flate\0",
        b"kidle\0",
    ]
    assert keys.terms_of(Facts(kind=CommitKind.OUTCOME, at=0, clock=0), SESSION) == []
    assert keys.terms_of(Facts(kind=CommitKind.OPEN, at=0, clock=0, server="s"), SESSION) == []
    note = Facts(kind=CommitKind.NOTE, at=0, clock=0, note="abandoned", flags=(Flag.BOM,))
    assert keys.terms_of(note, SESSION) == [b"nabandoned\0"]
    assert keys.terms_of(Facts(kind=CommitKind.NOTE, at=0, clock=0), SESSION) == []
    paused = Facts(kind=CommitKind.LIFECYCLE, at=0, clock=0, note="pause")
    assert keys.terms_of(paused, SESSION) == [b"s" + SESSION]
