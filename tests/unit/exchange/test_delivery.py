"""`exchange.delivery`: whether a caller has had its answer."""

import pytest
from msgspec import structs

from kit.commits import Log
from turnlog.core.commit import Commit
from turnlog.core.kinds import Actor, CommitKind, Flag, NoteKind
from turnlog.exchange.delivery import is_delivered, is_settling


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
    ("notes", "alive", "ended", "settling", "delivered"),
    [
        ((), False, 0.1, False, False),
        ((), True, 1.1, True, False),
        ((), True, 2.0, False, False),
        ((NoteKind.ABANDONED,), True, 0.1, False, False),
        ((NoteKind.DELIVERED,), False, 9.0, False, True),
        ((NoteKind.DELIVERED,), True, 0.1, False, True),
        ((NoteKind.ABANDONED, NoteKind.DELIVERED), True, 9.0, False, True),
        ((NoteKind.CANCEL_FORWARDED,), True, 0.1, False, False),
        # A cancel may have crossed the answer: it is read right behind it.
        ((NoteKind.DELIVERED,), True, 0.01, True, True),
        ((NoteKind.DELIVERED,), False, 0.01, False, True),
        ((NoteKind.DELIVERED, NoteKind.ABANDONED), True, 0.1, False, False),
    ],
)
def test_delivery_follows_from_a_note_for_which_a_living_process_has_time(
    notes: tuple[NoteKind, ...], alive: bool, ended: float, settling: bool, delivered: bool
) -> None:
    call = commits(*notes)
    assert is_settling(call, call[1], alive=alive, ended=ended) is settling
    assert is_delivered(call, call[1]) is delivered


def test_a_missing_outcome_is_not_delivered() -> None:
    assert not is_delivered(commits()[:1], None)
    assert not is_settling(commits()[:1], None, alive=True, ended=0.0)


def test_an_operators_outcome_is_not_delivered_by_an_earlier_note() -> None:
    call = commits(NoteKind.DELIVERED)
    word = structs.replace(
        call[1],
        facts=structs.replace(call[1].facts, actor=Actor.OPERATOR, flags=(Flag.RESOLVED,)),
        link=structs.replace(call[1].link, seq=99),
    )
    assert not is_delivered(call, word)
    assert not is_settling(call, word, alive=True, ended=0.0)
    assert is_delivered([*call, note(word, NoteKind.DELIVERED)], word)
