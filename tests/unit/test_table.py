"""`core.state.state_view`: the state by fields, and what changes it."""

from kit.commits import Log, call_text, changed
from turnlog.core.note import Decision, Evict, EvictReason, Metadata, Recall
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import Change, Field, Table, apply, diff, table


def grown() -> tuple[Table, Table]:
    """Return a session's table at some commit, and later."""
    log = Log(client="agent")
    log.note(Evict(keys=("k",), reason=EvictReason.TTL))
    log.begin("a", "write", changed("modified", "/a", maybe=True))
    before = table(fold(State(), log.commits))
    log.end("a", changed("modified", "/a"))
    log.note(Recall(key="k"))
    log.note(Decision(text="x", id="d"))
    log.note(Metadata(entries={"client": ""}))
    return before, table(fold(State(), log.commits))


def test_every_field_of_the_table_is_named() -> None:
    assert list(Table.__struct_fields__) == [field.value for field in Field]


def test_equal_tables_have_no_difference() -> None:
    before, _ = grown()
    assert diff(before, before) == []


def test_a_difference_names_field_and_key_with_both_values() -> None:
    before, after = grown()
    found = {(change.field, change.key): change for change in diff(before, after)}
    assert set(found) == {
        (Field.TOOLS_USED, "files.write"),
        (Field.FILES_MODIFIED, "/a"),
        (Field.DECISIONS_MADE, "d"),
        (Field.PENDING_ACTIONS, call_text("a")),
        (Field.EVICTED_KEYS, "k"),
        (Field.USAGE, "bytes_out"),
        (Field.USAGE, "duration_ms"),
        (Field.METADATA, "client"),
    }
    assert found[Field.METADATA, "client"] == Change(
        field=Field.METADATA, key="client", before="agent", after=None
    )
    assert found[Field.DECISIONS_MADE, "d"].before is None
    assert found[Field.USAGE, "bytes_out"].after == 20


def test_a_difference_makes_one_table_into_the_other_both_ways() -> None:
    before, after = grown()
    assert apply(before, diff(before, after)) == after
    assert apply(after, diff(after, before)) == before
