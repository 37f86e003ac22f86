"""`store.write.drafts`: what a draft must be, and what too long a queue costs it."""

from hashlib import sha256
from pathlib import Path

import pytest

from conformance.store.kit import control, intent, new_id, outcome, session
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, NoteKind
from turnlog.core.lifecycle import Action
from turnlog.store.base import Blob, Draft, StoreError, StoreFull
from turnlog.store.quota import Quota
from turnlog.store.write.drafts import (
    COMMIT_LIMIT,
    DraftAdmission,
    drop_content,
    prepare,
)

CONTENT = Blob(b"content")


def admission(data: Path) -> DraftAdmission:
    """Return the admission to a folder with room, and a short queue."""
    return DraftAdmission(data, Quota(data, 1 << 30), ample=100, most=200)


def test_content_that_nobody_waits_for_is_dropped_when_too_much_is_queued(tmp_path: Path) -> None:
    draft = outcome(session(), new_id(), body=CommitBody(summary="kept"), blob=CONTENT)
    admission(tmp_path).admit(draft, wait=False, queued=100)
    admission(tmp_path).admit(draft, wait=True, queued=101)
    assert draft.blob == CONTENT
    admission(tmp_path).admit(draft, wait=False, queued=101)
    assert draft.blob is None
    assert draft.body == CommitBody(summary="kept", output_blob=sha256(b"content").digest())


def test_a_draft_without_content_stays_as_it_is() -> None:
    draft = intent(session(), new_id(), body=CommitBody(summary="kept"))
    body = draft.body
    drop_content(draft)
    assert draft.body is body


def test_intents_are_refused_when_far_too_much_is_queued(tmp_path: Path) -> None:
    ref, call = session(), new_id()
    admission(tmp_path).admit(intent(ref, call), wait=True, queued=200)
    with pytest.raises(StoreFull, match="201 bytes wait"):
        admission(tmp_path).admit(intent(ref, call), wait=True, queued=201)
    admission(tmp_path).admit(outcome(ref, call), wait=True, queued=201)


def test_notes_with_content_are_refused_as_intents_are(tmp_path: Path) -> None:
    facts = Facts(kind=CommitKind.NOTE, at=0, clock=0, note=NoteKind.RECALL)
    told = Draft(session=session(), facts=facts, body=CommitBody(note=b"what was recalled"))
    bare = Draft(session=session(), facts=facts)
    admission(tmp_path).admit(told, wait=True, queued=200)
    with pytest.raises(StoreFull, match="no room for a note in memory: 201 bytes wait"):
        admission(tmp_path).admit(told, wait=True, queued=201)
    admission(tmp_path).admit(bare, wait=True, queued=201)


def test_control_commits_may_use_what_is_kept_for_outcomes(tmp_path: Path) -> None:
    # Else no content could be removed from a full store.
    draft = control(session(), Action.REDACT, 0)
    draft.body = CommitBody(note=b"what was removed")
    admission(tmp_path).admit(draft, wait=True, queued=201)


def test_a_disk_that_does_not_tell_its_room_is_an_error_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot measure"):
        admission(tmp_path / "gone").admit(intent(session(), new_id()), wait=True, queued=0)


def test_a_commit_over_the_cap_is_refused() -> None:
    large = intent(session(), new_id(), body=CommitBody(summary="x" * COMMIT_LIMIT))
    with pytest.raises(ValueError, match=f"over the cap of {COMMIT_LIMIT}"):
        prepare(large, bytes)
