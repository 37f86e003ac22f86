"""`turnlog gc`, `turnlog sessions hold` and `release` on the command line."""

from pathlib import Path

import msgspec
import pytest

from conformance.store.kit import begin, intent, new_id, outcome, put, session
from e2e.stores import START, process, turnlog
from kit.beside import proxy_beside
from kit.upstreams import RawUpstream
from turnlog.core.commit import CommitBody
from turnlog.store.base import Blob
from turnlog.store.lmdb import DAY, LmdbStore


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A store with one call, of long ago."""
    at = START - 40 * DAY
    store = LmdbStore.open(tmp_path / "data", now=lambda: at)
    ref, call = session("work"), new_id(at)
    ticket = await begin(store, intent(ref, call, at=at, blob=Blob(b'{"path": "/tmp"}')))
    await put(store, outcome(ref, call, ticket, at=at, blob=Blob(b"the answer")))
    await store.close()
    return tmp_path / "data"


def fates(data: Path, *more: str) -> list[tuple[str, str]]:
    done = turnlog("gc", "--json", *more, data=data)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    return [(line["since"][:10], line["fate"]) for line in lines]


def test_gc_deletes_what_is_due_only_when_told_to(data: Path) -> None:
    assert fates(data) == [("2026-10-18", "due")]
    said = turnlog("gc", data=data).stdout.splitlines()
    assert said[0].split() == ["WHAT", "NAME", "SINCE", "UNTIL", "SIZE", "COMMITS", "FATE"]
    assert said[1].split()[:2] == ["payloads", "20744-0"]
    assert said[2] == "20 KiB due, --yes deletes it"

    assert fates(data, "--yes") == [("2026-10-18", "deleted")]

    assert fates(data) == []
    assert turnlog("gc", data=data).stdout.splitlines()[-2:] == [
        "nothing is due",
        "by retention payloads 7d, bodies 90d (defaults)",
    ]
    assert "expired" in turnlog("show", "work:1", data=data).stdout
    assert turnlog("verify", data=data).returncode == 0


@pytest.mark.parametrize("is_due", [True, False])
def test_gc_removes_the_files_that_a_killed_one_has_left(data: Path, is_due: bool) -> None:
    if not is_due:
        fates(data, "--yes")
    left = data / "blobs" / "gone-20667-0-17"
    left.mkdir()
    (left / "data.mdb").write_bytes(b"content")
    fates(data)
    assert left.exists()
    fates(data, "--yes")
    assert not left.exists()


@pytest.fixture
async def old(tmp_path: Path) -> Path:
    """A store with one call, of more than a year ago."""
    data, at = tmp_path / "data", START - 400 * DAY
    store = LmdbStore.open(data, now=lambda: at)
    ref, call = session("work"), new_id(at)
    given = CommitBody(preview="path=/tmp", why="asked to")
    ticket = await begin(store, intent(ref, call, at=at, body=given, blob=Blob(b"the question")))
    returned = CommitBody(summary="it is done")
    await put(store, outcome(ref, call, ticket, at=at, body=returned, blob=Blob(b"the answer")))
    await store.close()
    return data


def test_gc_deletes_bodies_after_a_commit_with_the_state(old: Path) -> None:
    data = old
    before = turnlog("state", "work", "--json", data=data).stdout

    assert (
        turnlog("gc", data=data)
        .stdout.splitlines()[-2]
        .endswith("content of 3 commits due, --yes deletes it")
    )
    said = turnlog("gc", "--yes", data=data)
    assert said.returncode == 0
    assert "content of 3 commits deleted" in said.stdout

    (row,) = map(msgspec.json.decode, turnlog("log", "--json", data=data).stdout.splitlines())
    assert (row["gone"], row["tool"], row["output_summary"]) == ("expired", "read_file", "")
    assert "(expired)" in turnlog("log", data=data).stdout
    shown = turnlog("show", "work:1", data=data).stdout
    assert [line.split() for line in shown.splitlines() if line.split()[:1] == ["content"]] == [
        ["content", "expired"]
    ]
    assert "input       expired\noutput      expired" in shown
    (exported,) = map(
        msgspec.json.decode, turnlog("export", "--payloads", data=data).stdout.splitlines()
    )
    assert [exported[side]["kept"] for side in ("input", "output")] == ["expired", "expired"]
    searched = turnlog("log", "--input", "invoice", data=data)
    assert searched.stdout == "no attempts\n"
    assert "the inputs of 1 attempt are gone and were not searched" in searched.stderr
    verdict = msgspec.json.decode(turnlog("verify", "--json", data=data).stdout)
    assert (verdict["verdict"], verdict["bodies_dropped"]) == ("redacted_ok", 2)

    after = turnlog("state", "work", "--at", "2", "--json", data=data).stdout
    assert msgspec.json.decode(after)["state_hash"] == msgspec.json.decode(before)["state_hash"]
    compacted = turnlog("state", "work", "--at", "1", data=data)
    assert compacted.returncode == 2
    assert "before 2 are compacted: its state is kept from commit 2 on" in compacted.stderr
    assert "ask for a later one, as with `--at 2` or `--seq 2..`" in compacted.stderr
    assert turnlog("diff", "work", "--seq", "0..2", data=data).returncode == 2
    assert turnlog("diff", "work", "--seq", "2..4", data=data).returncode == 0


def test_gc_uses_the_ages_of_the_configuration(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "turnlog.yaml"
    config.write_text("retention: {payloads: forever}\n")
    assert fates(data, "--config", str(config), "--yes") == []

    config.write_text("retention: {payloads: 3650d}\n")
    assert fates(data, "--config", str(config), "--yes") == []


@pytest.mark.promise("STORE-22")
def test_gc_uses_the_ages_that_rules_give_to_servers_and_sessions(
    old: Path, tmp_path: Path
) -> None:
    config = tmp_path / "turnlog.yaml"

    def gc(rules: str, *more: str) -> list[dict[str, object]]:
        config.write_text(f"retention:\n  payloads: forever\n  rules: {rules}\n")
        done = turnlog("gc", "--json", "--config", str(config), *more, data=old)
        assert (done.returncode, done.stderr) == (0, "")
        return [msgspec.json.decode(line) for line in done.stdout.splitlines()]

    assert gc("[{session: wo*, bodies: forever}]") == []
    (due,) = gc("[{server: files, bodies: 30d}, {server: mail, bodies: forever}]")
    assert (due["what"], due["server"], due["commits"]) == ("bodies", "files", 2)
    said = turnlog("gc", "--config", str(config), data=old).stdout.splitlines()
    assert said[1].split()[2] == "files"
    assert said[-1] == "by retention payloads forever, bodies 90d, 2 rules (configured)"

    (done,) = gc("[{server: files, payloads: 30d, bodies: forever}]", "--yes")

    assert (done["what"], done["fate"]) == ("payloads", "deleted")
    shown = turnlog("show", "work:1", data=old).stdout.splitlines()
    assert [line.split()[:2] for line in shown[3:5]] == [
        ["input", "expired:"],
        ["output", "expired"],
    ]
    assert turnlog("verify", data=old).returncode == 0


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("{server: files}", "3:11: this rule decides no age, add payloads or bodies"),
        ("{tool: read, bodies: 1d}", "3:12: unknown key 'tool', use one of: bodies, payloads"),
        ("{bodies: soon}", "3:20: 'soon' is no amount, write a duration like"),
    ],
)
def test_a_rule_of_ages_that_is_wrong_is_an_error_with_its_place(
    data: Path, tmp_path: Path, rule: str, told: str
) -> None:
    config = tmp_path / "turnlog.yaml"
    config.write_text(f"retention:\n  payloads: 7d\n  rules: [{rule}]\n")
    refused = turnlog("gc", "--config", str(config), data=data)
    assert refused.returncode == 2
    assert f"{config}:{told}" in refused.stderr


def test_gc_without_a_configuration_uses_the_ages_of_the_proxy(data: Path, tmp_path: Path) -> None:
    rules = [{"server": "bank", "payloads": "30d"}]
    settings = {"retention": {"payloads": "3650d", "bodies": "forever", "rules": rules}}
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url, settings=settings):
        assert fates(data, "--yes") == []
    assert fates(data, "--yes") == []
    said = turnlog("gc", data=data).stdout.splitlines()
    assert said == [
        "nothing is due",
        "by retention payloads 3650d, bodies forever, 1 rule (of the proxy)",
    ]

    assert turnlog("backup", str(tmp_path / "copy"), data=data).returncode == 0
    assert fates(tmp_path / "copy", "--yes") == []

    (data / "retention").write_text("{}")
    refused = turnlog("gc", "--yes", data=data)
    assert refused.returncode == 3
    assert "start the proxy once, or give --config" in refused.stderr
    said_now = process(
        "gc", "--data", str(data), environ={"TURNLOG_RETENTION_PAYLOADS": "3650d"}
    ).stdout.splitlines()
    assert said_now[-1] == "by retention payloads 3650d, bodies 90d (configured)"


def test_a_hold_keeps_content_until_its_release(data: Path) -> None:
    before = msgspec.json.decode(turnlog("sessions", "--json", data=data).stdout)
    held = turnlog("sessions", "hold", "work", "--why", "a lawsuit", data=data)
    assert held.returncode == 0
    assert held.stdout.endswith(": its content is held\n")
    listed = msgspec.json.decode(turnlog("sessions", "--json", data=data).stdout)
    assert (listed["held"], listed["active_at"]) == (True, before["active_at"])
    assert "a lawsuit" in turnlog("show", "work:3", data=data).stdout

    assert fates(data, "--yes") == [("2026-10-18", "held")]

    released = turnlog("sessions", "--data", str(data), "release", "work")
    assert released.stdout.endswith("no longer held\n")
    assert fates(data, "--yes") == [("2026-10-18", "deleted")]


def test_a_hold_and_its_release_are_printed_as_json(data: Path) -> None:
    for command, kind in (("hold", "hold"), ("release", "release")):
        done = turnlog("sessions", command, "work", "--json", data=data)
        said = msgspec.json.decode(done.stdout)
        assert (said["kind"], said["known"]) == (kind, False)


def test_errors_of_holds_say_what_is_wrong(data: Path) -> None:
    released = turnlog("sessions", "release", "work", data=data)
    assert (released.returncode, released.stderr) == (
        2,
        "turnlog: the session 'work' is not held\n",
    )
    unknown = turnlog("sessions", "hold", "nothing", data=data)
    assert unknown.returncode == 2
    wordy = turnlog("sessions", "hold", "work", "--why", "x" * 2001, data=data)
    assert wordy.returncode == 2
    assert "it has 2001 characters" in wordy.stderr
