"""`store.write.ledger`: the commit that opens a session."""

from conformance.store.kit import START, intent, new_id, session
from turnlog.core.kinds import CommitKind, Phase, Status
from turnlog.store.write.ledger import opening_body, opening_facts


def test_a_session_opens_when_and_where_its_first_commit_was_made() -> None:
    cause = intent(session(), new_id(), server="files", at=START).facts
    facts = opening_facts(cause)
    assert (facts.kind, facts.phase, facts.status) == (CommitKind.OPEN, Phase.DONE, Status.OK)
    assert (facts.at, facts.clock, facts.actor) == (cause.at, cause.clock, cause.actor)
    assert (facts.server, facts.protocol) == (cause.server, cause.protocol)
    assert facts.call == b""


def test_the_body_says_how_the_session_was_named() -> None:
    ref = session("project")
    body = opening_body(ref)
    assert body.metadata == {
        "client": "kit",
        "rung": "explicit",
        "aliases": '["project\\u001fexplicit\\u001fme"]',
    }
