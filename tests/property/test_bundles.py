"""Law: what is packed and imported has the same chain and the same state, whatever the session is."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.stores import Call, fill, session_id, turnlog
from turnlog.core.kinds import Flag, Status
from turnlog.core.note import Decision, Evict, EvictReason, Note, TurnStart
from turnlog.core.operation import Operation
from turnlog.store.lmdb import LmdbReader

NAMES = st.sampled_from(["a", "b", "c"])
NOTES: st.SearchStrategy[Note] = st.one_of(
    st.builds(Decision, text=NAMES, why=NAMES),
    st.builds(TurnStart, name=NAMES),
    st.builds(Evict, keys=st.tuples(NAMES), reason=st.sampled_from(EvictReason)),
)
OPERATIONS: st.SearchStrategy[Operation] = st.builds(
    Operation,
    field=st.just("files_modified"),
    op=st.sampled_from(["created", "modified", "deleted"]),
    key=st.sampled_from(["/a", "/b", "/d/a"]),
)
CALLS: st.SearchStrategy[Call] = st.builds(
    Call,
    tool=NAMES,
    minute=st.integers(0, 600),
    session=st.sampled_from(["work", "other"]),
    status=st.sampled_from([Status.OK, Status.ERROR, Status.UNKNOWN, None]),
    flags=st.sampled_from([(), (Flag.LATE,)]),
    input=st.sampled_from([b'{"path":"/a"}', b"", b"x" * 3000]),
    output=st.sampled_from([b"", b"done", bytes(2000), b"\xff\x00"]),
    delta=st.lists(OPERATIONS, max_size=2).map(tuple),
    notes=st.lists(NOTES, max_size=2).map(tuple),
)


def said(*arguments: str, data: Path) -> Any:
    done = turnlog(*arguments, "--json", data=data)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def chain(data: Path) -> list[tuple[bytes, bytes | None]]:
    """Return the headers and bodies of the session `work`."""
    with LmdbReader.open(data) as reader, reader.view() as view:
        return [(header, body) for _, header, body in view.headers(session_id("work"))]


@pytest.mark.promise("STORE-19")
@settings(max_examples=8, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=12), is_copy=st.booleans())
def test_an_import_has_the_chain_and_the_state_of_what_was_packed(
    calls: list[Call], is_copy: bool
) -> None:
    calls = [*calls, Call(tool="last", minute=700)]
    with tempfile.TemporaryDirectory() as folder:
        here, there, bundle = (Path(folder) / name for name in ("here", "there", "bundle"))
        fill(here, calls)
        options = ("--copy",) if is_copy else ()
        packed = said("resume", "work", "--bundle", str(bundle), *options, data=here)
        imported = said("import", str(bundle), data=there)
        before, after = chain(here), chain(there)
        assert after[: len(before)] == before
        assert len(before) == packed["seq"] + 1 == imported["commits"]
        # Behind them stand the outcomes of open attempts, and the end of the pause.
        assert len(after) == len(before) + imported["closed"] + (not is_copy)
        at = ("state", "work", "--at", str(packed["seq"]))
        assert said(*at, data=there)["state_hash"] == said(*at, data=here)["state_hash"]
        assert turnlog("verify", data=there).returncode == 0
        assert said("import", str(bundle), data=there)["relation"] == "same"
        assert chain(there) == after
