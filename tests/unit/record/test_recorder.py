import hashlib
import resource
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.attempts import START, Bench, ask, bench, session
from kit.proxy import until
from turnlog.core.classify import failed, refused, succeeded
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.kinds import (
    CommitKind,
    Durability,
    Effect,
    ErrorKind,
    Executed,
    Flag,
    Phase,
    Status,
    WhenFull,
)
from turnlog.exchange.duplicates import DuplicateAction, replayed_ending, unsent_ending
from turnlog.exchange.outcome import AnswerFacts
from turnlog.observe.events import (
    CallEnded,
    CallStarted,
    RecorderFailed,
    SessionOpened,
    StoreFailed,
    StoreFilled,
)
from turnlog.record.attempt import Attempt
from turnlog.record.recorder import OFF_LOOP
from turnlog.store.base import Blob, StoreError, StoreFull

OK = succeeded()
DONE = b'{"content":[{"type":"text","text":"done"}]}'
SECRET = "Tr0ub4dor-and-more"
MINUTE = 60 * 10**9


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


async def begun(one: Bench, **changes: Any) -> Attempt:
    attempt = await one.recorder.begin(ask(session(), one.recorder.new_call(), **changes))
    await one.recorder.on_disk(attempt)
    return attempt


def reply(content: bytes = DONE, **changes: Any) -> AnswerFacts:
    plain = AnswerFacts(
        http_status=200,
        content=content,
        media_type="application/json",
        is_mcp=True,
        size=len(content),
    )
    return msgspec.structs.replace(plain, **changes)


def stored(one: Bench, attempt: Attempt) -> list[Commit]:
    with one.store.view() as view:
        return view.call(attempt.ask.call)


async def ended(
    one: Bench, attempt: Attempt, said: AnswerFacts, status: Status = Status.OK
) -> Commit:
    failing = status is Status.ERROR
    ending = refused(ErrorKind.TOOL_FAILED, attempt.ask.effect) if failing else succeeded(status)
    ticket = one.recorder.end(attempt, ending, said)
    assert ticket is not None
    return await ticket.done()


def body(commit: Commit) -> CommitBody:
    assert commit.body is not None
    return commit.body


@pytest.mark.promise("REC-10")
async def test_an_attempt_is_an_intent_and_an_outcome(one: Bench) -> None:
    attempt = await begun(one, trace="ab" * 16, definition=b"d" * 32, leg=3)
    one.time.now += MINUTE
    await ended(one, attempt, reply())
    intent, outcome = stored(one, attempt)
    assert (intent.facts.kind, outcome.facts.kind) == (CommitKind.INTENT, CommitKind.OUTCOME)
    for facts in (intent.facts, outcome.facts):
        assert (facts.call, facts.leg, facts.tool, facts.trace) == (
            attempt.ask.call,
            3,
            "write",
            "ab" * 16,
        )
        assert (facts.bytes_in, facts.definition) == (100, b"d" * 32)
    assert outcome.link.ref == intent.link.seq
    assert (outcome.facts.status, outcome.facts.executed) == (Status.OK, Executed.YES)
    assert (outcome.facts.duration, outcome.facts.bytes_out) == (MINUTE, len(DONE))
    assert body(outcome).summary == "done"
    assert body(outcome).output_hash == "sha256:" + hashlib.sha256(DONE).hexdigest()


async def test_the_log_says_of_a_call_what_was_said_of_its_input(one: Bench) -> None:
    attempt = await begun(one, arguments=f'{{"password":"{SECRET}"}}'.encode())
    outcome = await ended(one, attempt, reply())
    assert (attempt.facts.flags, outcome.facts.flags) == ((Flag.REDACTED,), ())
    assert one.log.of(CallEnded)[-1].flags == (Flag.REDACTED,)


async def test_an_attempt_ends_once(one: Bench) -> None:
    attempt = await begun(one)
    await ended(one, attempt, reply())
    assert one.recorder.end(attempt, OK, reply(b"{}")) is None
    assert len(stored(one, attempt)) == 2
    assert len(one.log.of(CallEnded)) == 1


async def test_a_task_has_another_outcome_when_it_ends(one: Bench) -> None:
    attempt = await begun(one)
    await ended(one, attempt, reply(), Status.ACCEPTED)
    one.recorder.reopen(attempt)
    await ended(one, attempt, reply())
    assert [(each.facts.status, each.facts.n) for each in stored(one, attempt)[1:]] == [
        (Status.ACCEPTED, 0),
        (Status.OK, 1),
    ]


@pytest.mark.parametrize(
    ("status", "ttl", "expires"),
    [
        (Status.OK, None, 0),
        (Status.ERROR, 5, 0),
        (Status.INPUT_REQUIRED, None, 15 * MINUTE),
        (Status.ACCEPTED, None, 15 * MINUTE),
        (Status.ACCEPTED, 5, 5),
        (Status.ACCEPTED, 0, 0),
        (Status.ACCEPTED, -1, None),
    ],
)
async def test_a_parked_leg_expires(
    one: Bench, status: Status, ttl: int | None, expires: int | None
) -> None:
    attempt = await begun(one)
    outcome = await ended(one, attempt, reply(ttl=ttl), status)
    if not status.parked or expires is None:
        assert outcome.facts.expires == 0
    else:
        assert outcome.facts.expires == outcome.facts.at + expires


WAITS = [
    (Durability.BALANCED, Effect.READ, False),
    (Durability.BALANCED, Effect.WRITE, True),
    (Durability.BALANCED, Effect.UNKNOWN, True),
    (Durability.BALANCED, Effect.IDEMPOTENT_WRITE, True),
    (Durability.STRICT, Effect.READ, True),
    (Durability.RELAXED, Effect.IRREVERSIBLE, False),
]


@pytest.mark.promise("REC-9")
@pytest.mark.parametrize(("durability", "effect", "waits"), WAITS)
async def test_durability_and_effect_say_who_waits(
    tmp_path: Path, durability: Durability, effect: Effect, waits: bool
) -> None:
    async with bench(tmp_path, durability=durability) as one:
        attempt = await begun(one, effect=effect)
        assert attempt.intent is not None
        assert (attempt.intent.placed is not None) is waits
        ticket = one.recorder.end(attempt, OK, reply())
        assert (ticket is not None) is waits


@pytest.mark.promise("SEC-4")
async def test_secrets_are_cut_and_hashes_of_what_held_them_are_keyed(one: Bench) -> None:
    attempt = await begun(one, arguments=f'{{"password":"{SECRET}"}}'.encode())
    said = reply(f'{{"content":[],"structuredContent":{{"api_key":"{SECRET}"}}}}'.encode())
    await ended(one, attempt, msgspec.structs.replace(said, detail=f"token={SECRET}"))
    intent, outcome = stored(one, attempt)
    assert Flag.REDACTED in intent.facts.flags
    assert Flag.REDACTED in outcome.facts.flags
    assert str(body(intent).input_hash).startswith("hmac-sha256:")
    assert str(body(outcome).output_hash).startswith("hmac-sha256:")
    assert SECRET not in body(outcome).detail
    with one.store.view() as view:
        for digest in (body(intent).input_blob, body(outcome).output_blob):
            blob = view.blob(digest)
            assert isinstance(blob, Blob)
            assert blob.redacted
            assert SECRET.encode() not in blob.data


@pytest.mark.promise("REC-22")
async def test_content_over_the_cap_is_truncated_and_marked(tmp_path: Path) -> None:
    async with bench(tmp_path, record_limit=1000) as one:
        attempt = await begun(one, arguments=b'{"a":"' + b"x " * 1000 + b'"}')
        whole = b'{"content":[],"x":"' + b"y " * 1000 + b'"}'
        await ended(one, attempt, reply(whole))
        intent, outcome = stored(one, attempt)
        assert Flag.TRUNCATED_RECORD in intent.facts.flags
        assert Flag.TRUNCATED_RECORD in outcome.facts.flags
        assert body(outcome).output_hash == "sha256:" + hashlib.sha256(whole).hexdigest()
        with one.store.view() as view:
            blob = view.blob(body(outcome).output_blob)
            assert isinstance(blob, Blob)
            assert (blob.cut, len(blob.data)) == (True, 1000)


async def test_large_content_is_read_beside_the_loop_and_recorded_alike(one: Bench) -> None:
    text = b'"password=' + SECRET.encode() + b" " + b"word " * OFF_LOOP + b'"'
    attempt = await begun(one, arguments=b'{"a":' + text + b"}")
    content = b'{"content":[{"type":"text","text":' + text + b"}]}"
    ticket = one.recorder.end(attempt, OK, reply(content))
    assert ticket is not None
    assert ticket.placed is None
    outcome = await ticket.done()
    assert ticket.placed == outcome
    (intent, _) = stored(one, attempt)
    for commit in (intent, outcome):
        assert Flag.REDACTED in commit.facts.flags
    assert body(outcome).summary.startswith("password=[redacted]")
    assert one.recorder.end(attempt, OK, reply(content)) is None


async def test_an_input_that_came_in_part_has_no_hash(one: Bench) -> None:
    attempt = await begun(one, complete=False)
    (intent,) = stored(one, attempt)
    assert body(intent).input_hash is None
    assert Flag.TRUNCATED_RECORD in intent.facts.flags


async def test_flags_of_request_way_and_answer_meet_on_the_outcome(one: Bench) -> None:
    attempt = await begun(one, flags=(Flag.BOM,))
    attempt.marks.add(Flag.SERVER_REQUEST)
    outcome = await ended(one, attempt, reply(flags=(Flag.DUPLICATE_KEYS,)))
    assert outcome.facts.flags == (Flag.BOM, Flag.SERVER_REQUEST, Flag.DUPLICATE_KEYS)


async def test_the_log_tells_of_session_start_and_end(one: Bench) -> None:
    attempt = await begun(one)
    await ended(one, attempt, reply())
    (opened,) = one.log.of(SessionOpened)
    (started,) = one.log.of(CallStarted)
    (end,) = one.log.of(CallEnded)
    assert started.call == end.call
    assert opened.session == end.session != ""
    assert (end.status, end.turn, end.step, end.http_status) == (Status.OK, 1, 1, 200)


async def test_an_end_is_told_of_once_it_is_on_disk_where_somebody_waits(one: Bench) -> None:
    read, write = await begun(one, effect=Effect.READ), await begun(one)
    one.recorder.end(read, OK, reply())
    ticket = one.recorder.end(write, OK, reply())
    assert [end.effect for end in one.log.of(CallEnded)] == [Effect.READ]
    assert ticket is not None
    await ticket.done()
    assert [end.effect for end in one.log.of(CallEnded)] == [Effect.READ, Effect.UNKNOWN]


async def test_a_session_is_told_of_once(one: Bench) -> None:
    ref = session()
    for _ in range(3):
        attempt = await one.recorder.begin(ask(ref, one.recorder.new_call()))
        await one.recorder.on_disk(attempt)
        await ended(one, attempt, reply())
    assert len(one.log.of(SessionOpened)) == 1


async def test_a_plain_call_is_logged_as_http(one: Bench) -> None:
    attempt = await begun(one, method="PUT", tool="PUT /x", protocol="http/1.1")
    ticket = one.recorder.end(attempt, succeeded(), AnswerFacts(http_status=204))
    assert ticket is not None
    await ticket.done()
    (end,) = one.log.of(CallEnded)
    assert (end.http_method, end.method, end.http_version, end.protocol) == ("PUT", "", "1.1", "")


async def test_an_attempt_without_answer_is_recorded_as_what_is_known(one: Bench) -> None:
    attempt = await begun(one)
    ending = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.UNKNOWN)
    ticket = one.recorder.end(attempt, ending, AnswerFacts(detail="reset by peer"))
    assert ticket is not None
    facts = (await ticket.done()).facts
    assert (facts.status, facts.error, facts.error_kind) == (
        Status.UNKNOWN,
        "connection",
        "connection_lost",
    )
    assert (facts.http_status, facts.bytes_out) == (0, 0)
    (_, outcome) = stored(one, attempt)
    assert (body(outcome).detail, body(outcome).output_hash) == ("reset by peer", None)


async def test_calls_have_ids_that_rise_and_never_repeat(one: Bench) -> None:
    made = [one.recorder.new_call() for _ in range(100)]
    assert made == sorted(set(made))


async def fill(one: Bench) -> None:
    """Begin calls until one finds no room."""
    for _ in range(5000):
        attempt = await begun(one)
        if attempt.intent is None:
            return
    raise AssertionError


async def test_a_full_store_refuses_an_intent(tmp_path: Path) -> None:
    async with bench(tmp_path, store_limit=1 << 16) as one:
        with pytest.raises(StoreFull):
            await fill(one)
        started = len(one.log.of(CallStarted))
        with pytest.raises(StoreFull):
            await begun(one)
        assert len(one.log.of(StoreFilled)) == 1
        assert len(one.log.of(CallStarted)) == started


async def test_a_store_that_is_gone_is_logged_once_until_it_is_back(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    async with bench(data) as one:
        for times in (1, 2):
            await begun(one)
            data.rename(elsewhere)
            for _ in range(3):
                with pytest.raises(StoreError):
                    await begun(one)
            assert len(one.log.of(StoreFailed)) == times
            elsewhere.rename(data)
            await until(lambda: not one.store.down or None, "a store that can be written to")


@contextmanager
def no_file_grows() -> Generator[None]:
    """Let no file be written to until the block ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_is_full_is_logged_once_until_a_call_is_written(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        for times in (1, 2):
            await begun(one)
            for _ in range(3):
                with no_file_grows(), pytest.raises(StoreError):
                    await begun(one)
                await until(lambda: not one.store.down or None, "a store that takes calls")
            assert len(one.log.of(StoreFilled)) == times


async def test_a_full_store_may_be_told_to_let_calls_pass(tmp_path: Path) -> None:
    passing = WhenFull.FORWARD_UNRECORDED
    async with bench(tmp_path, store_limit=1 << 16, when_full=passing) as one:
        await fill(one)
        attempt = await begun(one)
        assert attempt.intent is None
        assert one.recorder.end(attempt, OK, reply()) is None
        end = one.log.of(CallEnded)[-1]
        assert Flag.UNRECORDED in end.flags
        assert one.log.of(RecorderFailed)
        assert stored(one, attempt) == []


async def test_an_outcome_after_the_store_closed_is_logged_and_not_raised(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        attempt = await begun(one)
    assert one.recorder.end(attempt, OK, reply()) is None
    assert [each.flag for each in one.log.of(RecorderFailed)] == [Flag.UNRECORDED]


async def test_an_attempt_of_an_earlier_process_gets_its_outcome_here(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        before = await begun(one)
        await ended(one, before, reply(), Status.ACCEPTED)
        assert before.intent is not None
        intent = before.intent
        taken = one.recorder.taken_up(before.ask, intent, n=0)
        one.recorder.reopen(taken)
        await ended(one, taken, reply())
        assert [each.facts.n for each in stored(one, before)[1:]] == [0, 1]


async def test_a_call_that_waited_for_another_began_when_it_was_asked(one: Bench) -> None:
    first = await begun(one)
    asked = ask(session(), one.recorder.new_call(), effect=Effect.WRITE)
    ending = failed(ErrorKind.RESPONSE_TIMEOUT, Phase.QUEUED, Effect.WRITE)
    at = START + one.time.now
    joined = one.recorder.unsent(asked, ending, AnswerFacts(), first.intent, waited=60.0)
    assert joined.outcome is not None
    await one.recorder.settle([joined.outcome])
    intent, outcome = (commit.facts for commit in stored(one, joined))
    assert (intent.at, outcome.at) == (at - MINUTE, at)
    assert outcome.duration == MINUTE


async def test_empty_stands_for_an_answer_that_was_empty_and_for_nothing_else(one: Bench) -> None:
    unanswered = await begun(one)
    lost = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, unanswered.ask.effect)
    ticket = one.recorder.end(unanswered, lost, AnswerFacts())
    assert ticket is not None
    nothing = await ticket.done()
    hollow = await ended(one, await begun(one), reply(b"{}"))
    assert (body(nothing).summary, body(hollow).summary) == ("", "empty")


async def test_a_call_that_got_an_earlier_answer_says_what_that_said(one: Bench) -> None:
    first = await begun(one)
    source = one.recorder.end(first, OK, reply())
    assert source is not None
    await source.done()
    asked = ask(session(), one.recorder.new_call(), effect=Effect.WRITE)
    again = one.recorder.unsent(asked, replayed_ending(OK, whole=True), AnswerFacts(), source)
    asked = ask(session(), one.recorder.new_call(), effect=Effect.WRITE)
    unknown = one.recorder.unsent(
        asked, unsent_ending(DuplicateAction.UNKNOWN, Effect.WRITE), AnswerFacts(), source
    )
    assert again.outcome is not None
    assert unknown.outcome is not None
    await one.recorder.settle([again.outcome, unknown.outcome])
    _, said = stored(one, again)
    assert (said.facts.status, body(said).summary) == (Status.REPLAYED, "done")
    assert body(await unknown.outcome.done()).summary == ""
