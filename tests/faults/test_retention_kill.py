"""`gc` and `purge` killed at many points of their work: what should stay stays, and the next one goes on."""

import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from e2e.stores import turnlog
from e2e.test_cli_purge import PLANTED, TEXT, fill, holders
from faults.killed_command import killed, points
from turnlog.core import ids
from turnlog.store.lmdb import DAY, LmdbReader

POINTS = 16
"""Points at which each command is killed."""
OLD = -120 * DAY


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an old session, one that is to be purged, and another."""
    import asyncio

    data = tmp_path_factory.mktemp("retention") / "data"
    asyncio.run(fill(data, "old", "of-long-ago", shift=OLD))
    asyncio.run(fill(data, "secret", TEXT))
    asyncio.run(fill(data, "other", "harmless"))
    return data


def output(data: Path, *arguments: str) -> str:
    done = turnlog(*arguments, data=data)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(data: Path, name: str) -> tuple[str, str]:
    """Return what is told of a session that nothing was deleted of: its rows with payloads, its state."""
    rows = output(data, "export", name, "--payloads")
    return rows, msgspec.json.decode(output(data, "state", name, "--json"))["state_hash"]


def kills(base: Path, tmp_path: Path, *arguments: str) -> list[Path]:
    """Return copies of a store in each of which a command was killed at another point."""
    whole = shutil.copytree(base, tmp_path / "whole")
    last = points(*arguments, "--data", str(whole))
    found: list[Path] = []
    for number in range(POINTS):
        data = shutil.copytree(base, tmp_path / str(number))
        point = 1 + number * (last - 1) // (POINTS - 1)
        if killed(point, *arguments, "--data", str(data)).returncode == -signal.SIGKILL:
            found.append(data)
    assert len(found) > POINTS // 2
    return found


@pytest.mark.promise("STORE-16")
@pytest.mark.timeout(300)
def test_a_gc_that_is_killed_at_any_point_loses_nothing_and_is_finished_by_the_next(
    base: Path, tmp_path: Path
) -> None:
    before, other = told(base, "old-of-long-ago")[1], told(base, "other-harmless")
    for data in kills(base, tmp_path, "gc", "--yes"):
        assert turnlog("verify", data=data).returncode == 0
        assert told(data, "other-harmless") == other

        output(data, "gc", "--yes")

        assert output(data, "gc", "--json") == ""
        assert turnlog("verify", data=data).returncode == 0
        assert told(data, "other-harmless") == other
        head = msgspec.json.decode(output(data, "state", "old-of-long-ago", "--at", "82", "--json"))
        assert head["state_hash"] == before
        row = output(data, "log", "old-of-long-ago", "--last", "1", "--json")
        assert msgspec.json.decode(row)["gone"] == "expired"
        shutil.rmtree(data)


@pytest.mark.promise("STORE-16")
@pytest.mark.timeout(300)
def test_a_purge_that_is_killed_at_any_point_is_not_begun_or_is_finished_by_the_next_gc(
    base: Path, tmp_path: Path
) -> None:
    name, other = f"secret-{TEXT}", told(base, "other-harmless")
    whole = told(base, name)[0]
    begun = 0
    for data in kills(base, tmp_path, "purge", name, "--yes"):
        assert turnlog("verify", data=data).returncode == 0
        assert told(data, "other-harmless") == other
        with LmdbReader.open(data) as reader, reader.view() as view:
            purges = list(view.purges())
        if not purges and holders(data):
            assert told(data, name)[0] == whole
            shutil.rmtree(data)
            continue
        begun += 1

        output(data, "gc", "--yes")

        assert holders(data, PLANTED) == []
        assert turnlog("verify", data=data).returncode == 0
        assert told(data, "other-harmless") == other
        for session in purges:
            row = output(data, "log", ids.to_text(session), "--last", "1", "--json")
            assert msgspec.json.decode(row)["gone"] == "purged"
        shutil.rmtree(data)
    assert begun > POINTS // 4


@pytest.mark.promise("STORE-16", "STORE-22")
@pytest.mark.timeout(300)
def test_a_gc_by_rules_that_is_killed_at_any_point_is_finished_by_the_next(
    base: Path, tmp_path: Path
) -> None:
    config = tmp_path / "turnlog.yaml"
    config.write_text(
        "retention:\n  payloads: forever\n  bodies: forever\n"
        "  rules: [{server: files, payloads: 100d, bodies: 100d}]\n"
    )
    gc = ("gc", "--yes", "--config", str(config))
    before, other = told(base, "old-of-long-ago")[1], told(base, "other-harmless")
    for data in kills(base, tmp_path, *gc):
        assert turnlog("verify", data=data).returncode == 0
        assert told(data, "other-harmless") == other

        output(data, *gc)

        assert output(data, "gc", "--json", "--config", str(config)) == ""
        assert turnlog("verify", data=data).returncode == 0
        assert told(data, "other-harmless") == other
        head = msgspec.json.decode(output(data, "state", "old-of-long-ago", "--at", "82", "--json"))
        assert head["state_hash"] == before
        row = msgspec.json.decode(
            output(data, "export", "old-of-long-ago", "--payloads").splitlines()[0]
        )
        assert (row["gone"], row["input"]["kept"]) == ("expired", "expired")
        assert holders(data, b"0 of-long-ago in") == []
        shutil.rmtree(data)
