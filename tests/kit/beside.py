"""A proxy process beside a test that blocks: what `kit.proxy` does, without a loop in the test."""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

from turnlog.core.kinds import Status
from turnlog.sessions import log
from turnlog.sessions.log import Query
from turnlog.sessions.rows import Row
from turnlog.store.lmdb import LmdbReader

from .clients import MCP_HEADERS, Client, wait_until
from .proxy import Proxy, running
from .upstreams import RawUpstream, echo


@contextmanager
def proxy_beside(
    folder: Path,
    *upstreams: str,
    settings: Mapping[str, object] | None = None,
    flags: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Generator[Proxy]:
    """Run `turnlog serve` until the block ends, as `kit.proxy.running` does."""
    with asyncio.Runner() as runner:
        manager = running(folder, *upstreams, settings=settings, flags=flags, environ=environ)
        proxy = runner.run(_enter(manager))
        try:
            yield proxy
        except BaseException as error:
            runner.run(_leave(manager, error))
            raise
        runner.run(_leave(manager, None))


class Rig:
    """A scripted upstream with a proxy before it, shared by the tests of a module."""

    def __init__(self, upstream: RawUpstream, proxy: Proxy) -> None:
        self.upstream = upstream
        self.proxy = proxy
        self._sessions = 0
        self.session = ""

    def fresh(self) -> None:
        """Forget what tests before did to the upstream; begin a session of this test's own."""
        self.upstream.script = echo
        self.upstream.requests.clear()
        self._sessions += 1
        self.session = f"test-{self._sessions}"

    def client(self, *, receive_buffer: int = 0) -> Client:
        """Connect to the proxy."""
        return Client(self.proxy.url, receive_buffer=receive_buffer)

    @property
    def path(self) -> str:
        """The path of the MCP endpoint in this test's session."""
        return f"/s/{self.session}/mcp"

    @property
    def session_headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of a client of the handshake revisions, with a protocol session of this test."""
        return (*MCP_HEADERS, ("Mcp-Session-Id", f"mcp-{self.session}"))

    def post(self, body: bytes, *headers: tuple[str, str]) -> bytes:
        """Post a message in this test's session; return the answer's body."""
        with self.client() as client:
            return client.request("POST", self.path, body, headers=(*MCP_HEADERS, *headers)).body

    def rows(self) -> list[Row]:
        """Return this test's rows, oldest first."""
        return session_rows(self.proxy.data, self.session)

    def notes(self) -> list[str]:
        """Return the kinds of the notes in this test's session, oldest first."""
        return session_notes(self.proxy.data, self.session)

    def ended_rows(self, count: int = 1) -> list[Row]:
        """Wait until this test's session has `count` rows and none is pending; return them."""
        wait_until(lambda: _ended(self.rows(), count), f"{count} rows of {self.session!r} end")
        return self.rows()

    def rest(self) -> None:
        """Wait until no call of this test is under way: what comes late would be taken for the next
        test's, whose proxy and upstream are the same."""
        wait_until(lambda: all(row.status != "pending" for row in self.rows()), "calls end")

    def row(self) -> Row:
        """Wait until the only row of this test's session has ended; return it."""
        (row,) = self.ended_rows()
        return row


@contextmanager
def ruled(folder: Path, rules: str, *, flags: Sequence[str] = ()) -> Generator[Rig]:
    """Yield a rig whose proxy has a file of rules."""
    (folder / "rules.yaml").write_text(rules)
    with (
        RawUpstream() as upstream,
        proxy_beside(
            folder, upstream.url, settings={"rules": ["rules.yaml"]}, flags=flags
        ) as proxy,
    ):
        yield Rig(upstream, proxy)


def session_rows(data: Path, name: str) -> list[Row]:
    """Return the rows of the session that is called `name`, oldest first."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            found = [one.session for one in view.sessions() if name in _names(one.aliases)]
            return [row for one in found for row in log.read_rows(view, Query(session=one))]
    finally:
        reader.close()


def session_notes(data: Path, name: str) -> list[str]:
    """Return the kinds of the notes in the session that is called `name`, oldest first."""
    return [kind for kind, _ in timed_notes(data, name)]


def timed_notes(data: Path, name: str) -> list[tuple[str, int]]:
    """Return kind and time (ns) of the notes in the session that is called `name`, oldest first."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            found = [one.session for one in view.sessions() if name in _names(one.aliases)]
            commits = [commit for one in found for commit in view.commits(one)]
            facts = [commit.facts for commit in commits]
            return [(each.note, each.at) for each in facts if each.note]
    finally:
        reader.close()


def _names(aliases: tuple[str, ...]) -> list[str]:
    return [part for alias in aliases for part in re.split("[:#\x1f]", alias)]


def _ended(rows: list[Row], count: int) -> bool:
    return len(rows) >= count and all(row.status is not Status.PENDING for row in rows)


async def _enter(manager: AbstractAsyncContextManager[Proxy]) -> Proxy:
    return await manager.__aenter__()


async def _leave(manager: AbstractAsyncContextManager[Proxy], error: BaseException | None) -> None:
    await manager.__aexit__(type(error) if error else None, error, None)
