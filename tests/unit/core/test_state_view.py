"""`core.state.state_view`: the state by fields, and the differences of two states."""

from kit.commits import Log, applied, call_text, changed
from turnlog.core.note import Decision, Evict, EvictReason, Metadata, Recall
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import FieldChange, StateField, Table, diff, state_table


def grown() -> tuple[Table, Table]:
    """Return a session's table at some commit, and later."""
    log = Log(client="agent")
    log.note(Evict(keys=("k",), reason=EvictReason.TTL))
    log.begin("a", "write", changed("modified", "/a", maybe=True))
    before = state_table(fold(State(), log.commits))
    log.end("a", changed("modified", "/a"))
    log.note(Recall(key="k"))
    log.note(Decision(text="x", id="d"))
    log.note(Metadata(entries={"client": ""}))
    return before, state_table(fold(State(), log.commits))


def test_every_field_of_the_table_is_named() -> None:
    assert list(Table.__struct_fields__) == [field.value for field in StateField]


def test_equal_tables_have_no_difference() -> None:
    before, _ = grown()
    assert diff(before, before) == []


def test_a_difference_names_field_and_key_with_both_values() -> None:
    before, after = grown()
    found = {(change.field, change.key): change for change in diff(before, after)}
    assert set(found) == {
        (StateField.TOOLS_USED, "files.write"),
        (StateField.FILES_MODIFIED, "/a"),
        (StateField.DECISIONS_MADE, "d"),
        (StateField.PENDING_ACTIONS, call_text("a")),
        (StateField.EVICTED_KEYS, "k"),
        (StateField.USAGE, "bytes_out"),
        (StateField.USAGE, "duration_ms"),
        (StateField.METADATA, "client"),
    }
    assert found[StateField.METADATA, "client"] == FieldChange(
        field=StateField.METADATA, key="client", before="agent", after=None
    )
    assert found[StateField.DECISIONS_MADE, "d"].before is None
    assert found[StateField.USAGE, "bytes_out"].after == 20


def test_applying_a_difference_turns_one_table_into_the_other() -> None:
    before, after = grown()
    assert applied(before, diff(before, after)) == after
    assert applied(after, diff(after, before)) == before
