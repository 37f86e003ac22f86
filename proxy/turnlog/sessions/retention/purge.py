"""Removes all content of a session for good; the chained headers of its commits stay."""

import asyncio
import shutil
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import HEAD, Commit
from turnlog.core.hints import Hint
from turnlog.core.kinds import CommitKind, Gone
from turnlog.core.lifecycle import LIVE, Action, SessionStage
from turnlog.host import boot_id
from turnlog.sessions.control.writer import ControlRequest, ControlWriter
from turnlog.sessions.errors import OperationError
from turnlog.sessions.log import session_row
from turnlog.store import blobs
from turnlog.store.base import Draft, StoreError
from turnlog.store.blobs import Bucket, BucketRewrite
from turnlog.store.read.view import View

from .collect import AT_ONCE, Collector, copied_and_swapped, redact_draft, transactions

_TRIES: Final = 5
"""Times that a bucket is rewritten while other sessions begin to refer to what is purged."""


class PurgePlan(Struct, frozen=True, kw_only=True):
    """The content that a purge removes; the output of `turnlog purge --json`."""

    session: str
    head: int
    """The session's newest commit."""
    stage: SessionStage
    """It is closed first unless it is."""
    commits: int
    """Commits with content other than payloads."""
    payloads: int
    """Inputs and outputs."""
    shared: int
    """How many of these stay, because other sessions refer to the same content."""
    buckets: int
    """Days of payloads that are rewritten."""
    names: int
    states: int
    """Saved states."""
    done: bool = False
    pending: bool = False
    """Whether the log's file still has to be rewritten: another process has it open."""


class PurgeOrder(Struct, frozen=True, kw_only=True):
    """An operator's order to purge a session; `expect` and `fence` are those of a `ControlRequest`."""

    why: str = ""
    expect: int | None = None
    fence: int | None = None


class _Content(Struct, frozen=True):
    """The payloads of a session: those that go, and how many others use."""

    drop: frozenset[bytes]
    shared: frozenset[bytes]
    seen: int
    """Position of the newest commit that was looked at."""

    def by_bucket(self) -> dict[Bucket, set[int]]:
        """Return the numbers of what goes, by bucket."""
        found: defaultdict[Bucket, set[int]] = defaultdict(set)
        for handle in self.drop:
            if (bucket := blobs.bucket_of(handle)) is not None:
                found[bucket].add(blobs.number_in_bucket(handle))
        return found


def purge_plan(view: View, session: bytes, name: str) -> PurgePlan:
    """Return what a purge of a session would remove. Raises `NotFoundError`, `OperationError`, `StoreError`."""
    row = session_row(view, session)
    if session in view.held():
        raise OperationError(f"the session {name!r} is held", Hint.RELEASE)
    _refuse_in_flight(session, name, view)
    content = _content(session, view)
    bodies = sum(1 for _ in view.bodies_to_purge(session, -1, row.head_seq))
    return PurgePlan(
        session=ids.to_text(session),
        head=row.head_seq,
        stage=row.stage,
        commits=bodies,
        payloads=len(view.contents(session)),
        shared=len(content.shared),
        buckets=sum(
            blobs.path_of(view.data / "blobs", bucket).is_dir() for bucket in content.by_bucket()
        ),
        names=len(row.aliases),
        states=sum(1 for _ in _states(view.data, session).glob("*")),
    )


def _refuse_in_flight(session: bytes, name: str, view: View) -> None:
    if any(view.is_alive(attempt[0].link.epoch) for attempt in _open(view, session)):
        raise OperationError(
            f"calls of the session {name!r} are in flight; purge it once they have ended"
        )


def _open(view: View, session: bytes) -> list[list[Commit]]:
    return [attempt for attempt in view.unsettled((session,)) if len(attempt) == 1]


def _content(session: bytes, view: View) -> _Content:
    named = view.contents(session)
    digests = frozenset(handle[: blobs.DIGEST] for handle in named)
    found = {bucket for handle in named if (bucket := blobs.bucket_of(handle)) is not None}
    folder, boot = view.data / "blobs", boot_id()
    # A content whose commit was not written lies there a second time.
    every = named.union(*[blobs.copies(folder, bucket, digests, boot) for bucket in found])
    shared = view.shared(every, session)
    return _Content(every - shared, named & shared, view.last)


def _states(data: Path, session: bytes) -> Path:
    return data / "states" / ids.to_text(session)


class Purger(Struct, frozen=True):
    """Purges sessions, in steps each of which another process can take up."""

    collector: Collector

    @property
    def data(self) -> Path:
        """The store's folder."""
        return self.collector.store.data

    async def purge(
        self, session: bytes, plan: PurgePlan, order: PurgeOrder, writer: ControlWriter
    ) -> PurgePlan:
        """Remove the content of a session, but for what the log's file holds; return what was removed.

        Raises `Conflict`, `TransitionRefused`, `LeaseRefused`, `OperationError`, `StoreError`.
        """
        request = ControlRequest(
            action=Action.PURGE, why=order.why, expect=order.expect, fence=order.fence
        )
        if plan.stage in LIVE:
            await writer.write(session, structs.replace(request, action=Action.CLOSE))
            request = structs.replace(request, expect=None)  # the head is that commit now
        # A call that began before it was closed would bring an output.
        await self.collector.read(partial(_refuse_in_flight, session, plan.session))
        if plan.stage is SessionStage.PURGED:
            await self.collector.store.begin_purge(session)
        else:
            await writer.write(session, request)
        shared = await self.go_on(session)
        return structs.replace(
            plan, stage=SessionStage.PURGED, shared=shared, done=True, pending=True
        )

    async def go_on(self, session: bytes) -> int:
        """Finish a purge that was begun; return how many payloads stay.

        Raises `RewriteBusy` while another process purges, any other `StoreError`.
        """
        with blobs.rewriting(self.data / "blobs"):
            return await self._go_on(session)

    async def _go_on(self, session: bytes) -> int:
        shared = await self._erase(session)
        # A call that was under way when the purge began may bring a payload.
        while await self.collector.read(partial(_purged_until, session)) < 0:
            shared = await self._erase(session)
        return shared

    async def _erase(self, session: bytes) -> int:
        collector = self.collector
        until = await self._redacted(session)
        # Before the bodies, which name them.
        shared = await self._payloads(session)
        for last in range(until, -1, -AT_ONCE):
            first = max(-1, last - AT_ONCE)
            if found := await collector.read(partial(_bodies, session, first, last)):
                for part in transactions(found):
                    await collector.store.erase_bodies(part)
            collector.on_step(f"content of {until - first} commits")
        await asyncio.to_thread(shutil.rmtree, _states(self.data, session), ignore_errors=True)
        await collector.store.erase_session(session)
        return shared

    async def _redacted(self, session: bytes) -> int:
        """Return up to which commit the log says that content is purged: all, unless it said so before."""
        until = await self.collector.read(partial(_purged_until, session))
        if until >= 0:
            return until
        why = await self.collector.read(partial(_why, session))
        clock = self.collector.clock

        def draft(head: int) -> Draft:
            return redact_draft(session, head, Gone.PURGED, "content purged", head, clock, why=why)

        placed = await self.collector.append(session, draft)
        return placed.link.seq - 1

    async def _payloads(self, session: bytes) -> int:
        content = await self.collector.read(partial(_content, session))
        for bucket in sorted(content.by_bucket()):
            self.collector.on_step(f"payloads {bucket.name}")
            content = await self._bucket(session, bucket, content)
        return len(content.shared)

    async def _bucket(self, session: bytes, bucket: Bucket, content: _Content) -> _Content:
        """Rewrite a bucket without what goes; return what goes, which is less where others came to use it."""
        folder, store = self.data / "blobs", self.collector.store
        blobs.retire_older(folder, bucket)
        if not blobs.is_rewritable(folder, bucket, boot_id()):
            return content
        for _ in range(_TRIES):
            numbers = content.by_bucket().get(bucket)
            if not numbers:
                return content
            with BucketRewrite(folder, bucket, numbers) as rewrite:
                swap = partial(store.swap_bucket, rewrite, content.drop, session, content.seen)
                if await copied_and_swapped(rewrite, swap):
                    return content
            content = await self.collector.read(partial(_content, session))
        raise StoreError(
            f"other sessions begin to use payloads of {bucket.name} faster than they are purged; "
            "`turnlog gc --yes` goes on"
        )


def _bodies(session: bytes, after: int, until: int, view: View) -> list[int]:
    return list(view.bodies_to_purge(session, after, until))


def _purged_until(session: bytes, view: View) -> int:
    """Return up to which commit content is purged by what the log says; -1 if there is some behind that."""
    untils = [
        commit.link.ref or 0
        for commit in view.controls(session)
        if commit.facts.kind is CommitKind.REDACT and commit.facts.note == Gone.PURGED
    ]
    until = max(untils, default=-1)
    return -1 if any(view.bodies_to_purge(session, until, HEAD)) else until


def _why(session: bytes, view: View) -> str:
    """Return the reason of a purge that was begun."""
    said = [c for c in view.controls(session) if c.facts.note == Action.PURGE and c.body]
    return said[-1].body.detail if said and said[-1].body else ""
