"""`core.delivery`: whether a caller has had its answer."""

import pytest
from msgspec import structs

from kit.commits import Log
from turnlog.core.commit import Commit
from turnlog.core.delivery import is_delivered
from turnlog.core.kinds import Actor, CommitKind, Flag, NoteKind


def commits(*notes: NoteKind) -> list[Commit]:
    """Return a call that has ended, with notes on its outcome."""
    log = Log()
    log.call("a")
    begun, ended = log.commits[-2:]
    return [begun, ended, *(note(ended, kind) for kind in notes)]


def note(on: Commit, kind: NoteKind) -> Commit:
    facts = structs.replace(on.facts, kind=CommitKind.NOTE, note=kind)
    return structs.replace(on, facts=facts, link=structs.replace(on.link, ref=on.link.seq))


@pytest.mark.parametrize(
    ("notes", "alive", "ended", "delivered"),
    [
        ((), False, 0.1, False),
        ((), True, 0.9, True),
        ((), True, 1.0, False),
        ((NoteKind.ABANDONED,), True, 0.1, False),
        ((NoteKind.DELIVERED,), False, 9.0, True),
        ((NoteKind.ABANDONED, NoteKind.DELIVERED), True, 9.0, True),
    ],
)
def test_a_note_tells_and_until_it_can_be_there_a_living_process_is_trusted(
    notes: tuple[NoteKind, ...], alive: bool, ended: float, delivered: bool
) -> None:
    call = commits(*notes)
    assert is_delivered(call, call[1], alive=alive, ended=ended) is delivered


def test_nobody_has_had_an_answer_that_there_is_not() -> None:
    assert not is_delivered(commits()[:1], None, alive=True, ended=0.0)


def test_an_operators_word_is_told_to_who_had_the_answer_before() -> None:
    call = commits(NoteKind.DELIVERED)
    word = structs.replace(
        call[1],
        facts=structs.replace(call[1].facts, actor=Actor.OPERATOR, flags=(Flag.RESOLVED,)),
        link=structs.replace(call[1].link, seq=99),
    )
    assert not is_delivered(call, word, alive=True, ended=0.0)
    assert is_delivered([*call, note(word, NoteKind.DELIVERED)], word, alive=False, ended=0.0)
