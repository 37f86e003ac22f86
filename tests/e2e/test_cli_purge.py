"""`turnlog purge`: nothing of a session's content is left in any file of the data folder."""

import time
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from conformance.store.kit import begin, intent, known, new_id, outcome, put, session
from e2e.stores import process, turnlog
from kit.commits import changed
from turnlog.core import ids
from turnlog.core.commit import CommitBody
from turnlog.core.note import Decision, Fact, FactAction
from turnlog.host import boot_id
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.sessions.notes import NoteWriter
from turnlog.store.base import Blob, SessionRef
from turnlog.store.blobs import BlobReader, BlobWriter, pack
from turnlog.store.lmdb import DAY, LmdbStore

PLANTED = b"planted-4711"
TEXT = PLANTED.decode()


async def fill(data: Path, name: str, text: str, *, shift: int = 0) -> SessionRef:
    """Write a session with the text in everything that a session can have, so long from now."""
    now = time.time_ns() + shift
    store = LmdbStore.open(data, flush_every=50, now=lambda: now)
    ref = session(f"{name}-{text}")
    ref = SessionRef(
        candidate=ref.candidate, rung=ref.rung, aliases=ref.aliases, metadata={"client": text}
    )
    delta = (Raw(msgspec.msgpack.encode(changed("modified", f"/srv/{text}"))),)
    for number in range(40):
        call = new_id()
        given = CommitBody(preview=f"path={text}", why=text, delta=delta)
        ticket = await begin(
            store, intent(ref, call, at=now, body=given, blob=Blob(f"{number} {text} in".encode()))
        )
        returned = CommitBody(summary=text, detail=text, delta=delta)
        await put(
            store,
            outcome(
                ref, call, ticket, at=now, body=returned, blob=Blob(f"{number} {text} out".encode())
            ),
        )
    noter = NoteWriter(store, Redactor(), Clock(wall=lambda: now))
    await noter.write(ref, Decision(text=text, why=text))
    await noter.write(ref, Fact(id=text, action=FactAction.ASSERT, value=text))
    await store.close()
    return ref


def holders(data: Path, text: bytes = PLANTED) -> list[str]:
    """Return the files that hold a text."""
    files = (path for path in sorted(data.rglob("*")) if path.is_file())
    return [path.relative_to(data).as_posix() for path in files if text in path.read_bytes()]


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    await fill(data, "secret", TEXT)
    await fill(data, "other", "harmless")
    return data


@pytest.mark.promise("STORE-17")
def test_nothing_of_a_purged_session_is_left_in_any_file(data: Path) -> None:
    name = f"secret-{TEXT}"
    turnlog("state", name, data=data)
    assert turnlog("sessions", "hold", name, "--why", TEXT, data=data).returncode == 0
    assert turnlog("sessions", "release", name, data=data).returncode == 0
    before = {path.name for path in (data / "blobs").iterdir()}
    assert len(holders(data)) == 2  # the log, and the day's payloads

    planned = msgspec.json.decode(turnlog("purge", name, "--json", data=data).stdout)
    assert len(holders(data)) == 2
    done = turnlog("purge", name, "--yes", "--json", data=data)
    assert (done.returncode, done.stderr) == (0, "")

    purged = msgspec.json.decode(done.stdout)
    assert (planned["done"], planned["payloads"], planned["names"]) == (False, 80, 1)
    assert (purged["done"], purged["pending"], purged["stage"]) == (True, False, "purged")
    assert holders(data) == []
    assert {path.name for path in (data / "blobs").iterdir()} == {f"{one}.1" for one in before}
    lines = turnlog("verify", "--json", data=data).stdout.splitlines()
    assert sorted(msgspec.json.decode(line)["verdict"] for line in lines) == ["ok", "redacted_ok"]
    row = msgspec.json.decode(
        turnlog("log", planned["session"], "--last", "1", "--json", data=data).stdout
    )
    assert (row["gone"], row["tool"], row["output_summary"]) == ("purged", "read_file", "")
    shown = turnlog("show", f"{planned['session']}:1", data=data).stdout
    assert "input       purged\noutput      purged" in shown
    assert turnlog("log", name, data=data).returncode == 2
    assert turnlog("verify", "--rebuild", data=data).returncode == 0
    assert turnlog("gc", "--json", data=data).stdout == ""


def test_what_others_recorded_stays(data: Path) -> None:
    before = turnlog("log", "other-harmless", "--json", data=data).stdout
    turnlog("purge", f"secret-{TEXT}", "--yes", data=data)

    assert turnlog("log", "other-harmless", "--json", data=data).stdout == before
    exported = turnlog("export", "other-harmless", "--payloads", data=data).stdout
    rows = [msgspec.json.decode(line) for line in exported.splitlines()]
    assert len(rows) == 40
    assert {row[side]["kept"] for row in rows for side in ("input", "output")} == {"whole"}


async def test_content_that_another_session_uses_stays_and_is_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data)
    refs = [session("a"), session("b")]
    for ref, own in zip(refs, (b"only of a", b"only of b"), strict=True):
        call = new_id()
        ticket = await begin(store, intent(ref, call, blob=Blob(b"the same question")))
        await put(store, outcome(ref, call, ticket, blob=Blob(own)))
    await store.close()
    assert process("purge", "a", "--yes", "--data", str(data)).stdout.splitlines()[1] == (
        "1 payload of it stays, because other sessions use the same content"
    )

    assert holders(data, b"only of a") == []
    assert len(holders(data, b"the same question")) == 1
    found = process("show", f"{ids.to_text(known(refs[1]))}:1", "--data", str(data)).stdout
    assert "the same question" in found


async def test_content_that_was_written_and_never_committed_goes_with_its_copy(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    ref = await fill(data, "secret", TEXT)
    await fill(data, "other", "harmless")
    reader = BlobReader(data / "blobs", boot_id(), readonly=False)
    writer = BlobWriter(data, DAY, reader, boot_id(), 1 << 40, report=print)
    again = [f"{number} {text} out" for number in range(3) for text in (TEXT, "harmless")]
    writer.write([pack(Blob(text.encode())) for text in again], time.time_ns())
    writer.close()
    reader.close()
    name = ids.to_text(known(ref))

    done = msgspec.json.decode(
        process("purge", name, "--yes", "--json", "--data", str(data)).stdout
    )

    assert (done["payloads"], done["shared"]) == (80, 0)
    assert holders(data) == []
    assert holders(data, b" harmless out")


def test_a_held_session_is_not_purged(data: Path) -> None:
    turnlog("sessions", "hold", "other-harmless", data=data)
    refused = turnlog("purge", "other-harmless", "--yes", data=data)
    assert refused.returncode == 2
    assert "is held; `turnlog sessions release` ends the hold" in refused.stderr


def test_a_purge_is_refused_where_the_session_has_changed_since_its_plan(data: Path) -> None:
    plan = msgspec.json.decode(turnlog("purge", "other-harmless", "--json", data=data).stdout)
    assert turnlog("sessions", "pause", "other-harmless", data=data).returncode == 0
    head = str(plan["head"])
    refused = turnlog("purge", "other-harmless", "--yes", "--expect", head, data=data)
    assert refused.returncode == 2
    assert f"newest commit is {plan['head'] + 1}, not {head}" in refused.stderr
    listed = msgspec.json.decode(turnlog("sessions", "--json", data=data).stdout.splitlines()[0])
    assert listed["stage"] == "paused"

    newest = str(plan["head"] + 1)
    done = turnlog("purge", "other-harmless", "--yes", "--expect", newest, data=data)
    assert done.returncode == 0


def test_a_purged_session_takes_no_hold_and_no_mark(data: Path) -> None:
    turnlog("purge", "other-harmless", "--yes", data=data)
    (line, _) = turnlog("sessions", "--json", data=data).stdout.splitlines()
    purged = msgspec.json.decode(line)
    for arguments in (
        ("sessions", "hold", purged["session"]),
        ("taint", "mark", f"{purged['session']}:1", "--why", "wrong"),
    ):
        refused = turnlog(*arguments, data=data)
        assert refused.returncode == 2
        assert "the session is purged, so nothing can be noted in it" in refused.stderr
    assert turnlog("sessions", "--json", data=data).stdout.splitlines()[0] == line


def test_a_purge_can_be_repeated(data: Path) -> None:
    turnlog("purge", "other-harmless", "--yes", data=data)
    session_id = msgspec.json.decode(
        turnlog("sessions", "--json", data=data).stdout.splitlines()[0]
    )["session"]
    again = turnlog("purge", session_id, "--yes", data=data)
    assert again.returncode == 0
    assert "purged the content of 0 commits, 0 payloads" in again.stdout
    assert turnlog("verify", data=data).returncode == 0


async def test_a_purge_is_pending_while_another_process_has_the_store_open(
    data: Path,
) -> None:
    store = LmdbStore.open(data)
    name = f"secret-{TEXT}"
    done = process("purge", name, "--yes", "--json", "--data", str(data))
    assert msgspec.json.decode(done.stdout)["pending"] is True
    assert "payloads" not in str(holders(data))
    assert set(holders(data)) <= {"log/data.mdb"}
    listed = process("gc", "--json", "--data", str(data)).stdout
    assert msgspec.json.decode(listed)["fate"] == "due"
    said = process("gc", "--data", str(data)).stdout.splitlines()
    assert said[2] == "the rest of 1 purged session due, --yes deletes it"
    pending = process("gc", "--yes", "--json", "--data", str(data)).stdout
    assert msgspec.json.decode(pending)["fate"] == "pending"
    # It goes on meanwhile, with a bucket that was rewritten under it.
    ref, call = session("later"), new_id()
    ticket = await begin(store, intent(ref, call, blob=Blob(b"asked later")))
    await put(store, outcome(ref, call, ticket, blob=Blob(b"answered later")))
    await store.close()

    finished = process("gc", "--yes", "--json", "--data", str(data)).stdout

    assert msgspec.json.decode(finished)["fate"] == "deleted"
    assert holders(data) == []
    assert (
        "answered later"
        in process("show", f"{ids.to_text(known(ref))}:2", "--data", str(data)).stdout
    )
    assert process("verify", "--data", str(data)).returncode == 0


async def test_the_next_start_finishes_a_pending_purge(data: Path) -> None:
    store = LmdbStore.open(data)
    process("purge", f"secret-{TEXT}", "--yes", "--data", str(data))
    await store.close()

    store = LmdbStore.open(data)

    with store.view() as view:
        assert view.purges() == {}
    await store.close()
    assert holders(data) == []
