"""`store.write.ledger`: which outcome keeps its number, and which one moves."""

import pytest
from msgspec import structs

from turnlog.core.commit import Facts
from turnlog.core.kinds import Actor, CommitKind, Flag, Status
from turnlog.store.write.ledger import is_displaced, late_outcome

ANSWER = Facts(
    kind=CommitKind.OUTCOME, at=1, clock=1, call=bytes(16), n=1, status=Status.OK, tool="t"
)
CLOSED = structs.replace(ANSWER, actor=Actor.TURNLOG, status=Status.UNKNOWN)
SAID = structs.replace(ANSWER, actor=Actor.OPERATOR, flags=(Flag.RESOLVED,))
MOVED = structs.replace(ANSWER, n=2, flags=(Flag.LATE,))


@pytest.mark.parametrize(
    ("draft", "stored", "displaced"),
    [
        (ANSWER, ANSWER, False),
        (ANSWER, CLOSED, True),
        (CLOSED, CLOSED, False),
        (CLOSED, MOVED, False),
        (ANSWER, SAID, True),
        (SAID, ANSWER, False),
        (SAID, CLOSED, False),
        (SAID, MOVED, False),
        (CLOSED, SAID, False),
        (structs.replace(ANSWER, n=2), MOVED, True),
        (MOVED, MOVED, False),
        (structs.replace(ANSWER, kind=CommitKind.INTENT), CLOSED, False),
    ],
)
def test_an_answer_moves_only_behind_what_the_store_wrote_or_an_operator(
    draft: Facts, stored: Facts, displaced: bool
) -> None:
    assert is_displaced(draft, stored) is displaced


def test_an_answer_gets_the_next_number_and_is_late() -> None:
    redacted = structs.replace(ANSWER, flags=(Flag.REDACTED,))
    moved = late_outcome(redacted, [structs.replace(CLOSED, n=0), CLOSED])
    assert (moved.n, moved.flags) == (2, (Flag.REDACTED, Flag.LATE))
    assert structs.replace(moved, n=1, flags=(Flag.REDACTED,)) == redacted


def test_an_answer_that_was_stored_so_before_keeps_its_number() -> None:
    assert late_outcome(ANSWER, [CLOSED, MOVED, structs.replace(CLOSED, n=3)]) == MOVED


def test_another_answer_gets_another_number() -> None:
    other = structs.replace(ANSWER, status=Status.ERROR)
    assert late_outcome(other, [CLOSED, MOVED]).n == 3
