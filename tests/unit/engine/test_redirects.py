"""`engine.redirects`: which call follows which redirect."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import refused
from turnlog.core.kinds import Effect, ErrorKind
from turnlog.engine.redirects import Redirects, call_key, lead
from turnlog.exchange.outcome import AnswerFacts
from turnlog.record.attempt import Ask, Attempt
from turnlog.transport.routes import Route, Routes, target_of

SECOND = 1_000_000_000
ROUTES = Routes([target_of("a", "http://up.example/mcp")])


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


async def ended(one: Bench, asked: Ask, kind: ErrorKind) -> Attempt:
    """Return an attempt that ended so."""
    attempt = await one.recorder.begin(asked)
    one.recorder.end(attempt, refused(kind, Effect.WRITE), AnswerFacts())
    return attempt


@pytest.mark.promise("REDIR-3")
@pytest.mark.parametrize(("after", "number"), [(0, 2), (60, 2), (61, 1)])
async def test_a_redirect_is_followed_once_and_in_time(one: Bench, after: int, number: int) -> None:
    asked, redirected = ask(session("s"), one.recorder.new_call()), Redirects()
    assert not redirected.waiting
    attempt = await ended(one, asked, ErrorKind.INVALID_REQUEST)
    redirected.note(call_key(asked, "1"), attempt, 65 * SECOND)
    assert redirected.waiting
    later = (5 + after) * SECOND
    assert redirected.followed(asked, later, call_key(asked, "2")) is asked
    followed = redirected.followed(asked, later, call_key(asked, "2"), call_key(asked, "1"))
    assert (followed.call, followed.number) == (asked.call, number)
    assert redirected.followed(asked, later, call_key(asked, "2"), call_key(asked, "1")) is asked
    assert not redirected.waiting


async def test_a_call_that_may_have_run_is_not_continued(one: Bench) -> None:
    asked, redirected = ask(session("s"), one.recorder.new_call()), Redirects()
    attempt = await ended(one, asked, ErrorKind.MALFORMED_RESULT)
    redirected.note(call_key(asked, "1"), attempt, SECOND)
    assert not redirected.waiting


def route() -> Route:
    found = ROUTES.find("/a")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("locations", "resource", "elsewhere"),
    [
        ([], None, False),
        ([b"/mcp/"], "/mcp/", False),
        ([b"http://up.example/mcp/#x"], "/mcp/", False),
        ([b"/mcp/", b"http://UP.example:80/mcp/"], "/mcp/", False),
        ([b"/mcp/", b"/other"], None, True),
        ([b"http://other.example/"], None, True),
        ([b"/\\other.example/"], None, True),
    ],
)
def test_a_location_leads_within_its_server_or_elsewhere(
    locations: list[bytes], resource: str | None, elsewhere: bool
) -> None:
    leads = lead(route(), [(b"Location", each) for each in locations], "")
    assert (leads.resource, leads.elsewhere) == (resource, elsewhere)
