"""The API of contamination looks at a bounded part of a session, and says so."""

from pathlib import Path

from e2e.stores import Call, fill
from turnlog.api.endpoints import ENDPOINTS, ApiRequest
from turnlog.api.parameters import TaintQuery
from turnlog.core.kinds import Flag
from turnlog.sessions.lineage.taint import Contamination
from turnlog.sessions.state.state_at import saved_states
from turnlog.store.lmdb import LmdbReader

LARGE = b'["%s"]' % (b"x" * (1 << 20))


def asked(data: Path, query: TaintQuery) -> Contamination:
    (endpoint,) = (one for one in ENDPOINTS if one.path == "/sessions/{session}/taint")
    with LmdbReader.open(data) as store, store.view() as view:
        names = {"session": "work"}
        request = ApiRequest(names=names, query=query, now=0, saved=saved_states(data))
        found = endpoint.read(view, request)  # type: ignore[arg-type, call-arg]
    assert isinstance(found, Contamination)
    return found


def test_the_newest_commits_are_looked_at_and_it_is_said_how_to_get_the_rest(
    tmp_path: Path,
) -> None:
    marked = Call(tool="read", minute=0, flags=(Flag.TAINT_MARKED,))
    large = [Call(tool="large", minute=n, output=LARGE) for n in range(1, 17)]
    fill(tmp_path / "data", [marked, *large])
    newest = asked(tmp_path / "data", TaintQuery())
    assert (newest.after, newest.until, newest.head, newest.sources) == (4, 34, 34, [])
    assert newest.partial == [
        "of commits up to 4 counts what was recorded",
        "`until=4` looks at those, `turnlog taint show` on the proxy's host at all",
    ]
    rest = asked(tmp_path / "data", TaintQuery(until=4))
    assert (rest.after, rest.until, [one.tool for one in rest.sources]) == (None, 4, ["read"])
    assert rest.partial == []
