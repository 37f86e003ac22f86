"""`POST /sessions/{session}/lifecycle`: an operator changes a session."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from kit.pages import Answered, Connect, Pages, own_pages
from turnlog.observe.events import SessionChanged


@pytest.fixture
async def pages(tmp_path: Path, aiohttp_client: Connect) -> AsyncGenerator[Pages]:
    async with own_pages(tmp_path, aiohttp_client) as found:
        yield found


async def changed(pages: Pages, action: str, **more: Any) -> Answered:
    body = json.dumps({"action": action, **more}).encode()
    return await pages.api("/sessions/trip/lifecycle", "POST", body)


async def test_a_session_is_paused_and_lists_show_its_stage(pages: Pages) -> None:
    await pages.call()
    result = (await changed(pages, "pause", why="a break")).json()
    assert (result["stage"], result["actor"], result["lease"]) == ("paused", "operator", None)
    (event,) = pages.log.of(SessionChanged)
    assert (event.session, event.seq, event.action, event.stage) == (
        result["session"],
        result["seq"],
        "pause",
        "paused",
    )
    (line,) = (await pages.found("/sessions"))["items"]
    assert (line["stage"], line["seq"]) == ("paused", result["seq"])


@pytest.mark.promise("SESS-13")
async def test_a_change_after_an_unseen_commit_is_a_conflict_with_the_head(pages: Pages) -> None:
    await pages.call()
    problem = (await changed(pages, "close", expect=0)).problem(409)
    head = problem["head"]
    assert f"newest commit is {head}, not 0" in problem["detail"]
    assert (await changed(pages, "close", expect=head)).json()["seq"] == head + 1


@pytest.mark.promise("SESS-12")
async def test_a_change_that_the_stage_forbids_names_the_stage_and_the_head(pages: Pages) -> None:
    await pages.call()
    seq = (await changed(pages, "close")).json()["seq"]
    problem = (await changed(pages, "pause")).problem(409)
    told = (problem["stage"], problem["action"], problem["head"])
    assert told == ("closed", "pause", seq)


@pytest.mark.promise("SESS-14")
async def test_a_change_under_an_old_lease_names_the_newest(pages: Pages) -> None:
    await pages.call()
    lease = (await changed(pages, "claim", holder="planner", ttl=3600)).json()["lease"]
    problem = (await changed(pages, "pause", fence=lease["fence"] - 1)).problem(409)
    assert problem["fence"] == lease["fence"]
    assert (await changed(pages, "claim")).problem(409)["fence"] == lease["fence"]
    (line,) = (await pages.found("/sessions"))["items"]
    assert line["lease"] == lease
    assert lease["holder"] == "planner"
    assert (await changed(pages, "pause", fence=lease["fence"])).json()["stage"] == "paused"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"action": "purge"}, "action"),
        ({"action": "alias"}, "'alias' needs 'name'"),
        ({"action": "pause", "ttl": 3}, "'pause' has no 'ttl'"),
        ({"action": "claim", "ttl": 0}, "ttl"),
        ({"action": "pause", "who": "me"}, "who"),
    ],
)
async def test_a_change_that_is_not_one_is_refused(
    pages: Pages, body: dict[str, Any], told: str
) -> None:
    await pages.call()
    said = (await changed(pages, **body)).problem(400)
    assert told in said["detail"]
    assert pages.log.of(SessionChanged) == []
