"""The API while the disk is slow: reads have a time limit, queued writes have none."""

import asyncio
from pathlib import Path

import pytest

from kit.holding import nobody_writes
from kit.pages import Connect, own_pages

LIMIT = 0.05
"""s that the API gives a reader here."""
LONG = 20 * LIMIT


@pytest.mark.parametrize("what", ["note", "verdict"])
async def test_a_late_write_is_answered_late_and_truthfully(
    tmp_path: Path, aiohttp_client: Connect, what: str
) -> None:
    async with own_pages(tmp_path, aiohttp_client, limit=LIMIT) as pages:
        call = await pages.unknown()
        path, body = {
            "note": ("/sessions/trip/notes", b'{"kind": "decision", "text": "ask first"}'),
            "verdict": (f"/calls/{call}/resolve", b'{"verdict": "happened"}'),
        }[what]
        with nobody_writes(pages.data):
            answer = asyncio.ensure_future(pages.api(path, "POST", body))
            done, _ = await asyncio.wait({answer}, timeout=LONG)
            assert not done, answer.result()
        given = await answer
        assert given.status == 200
        with pages.context.store.view() as view:
            (found,) = view.find_sessions("trip")
            (*_, last) = view.commits(found)
    assert given.json()["seq"] == last.link.seq


async def test_a_read_gets_an_error_when_the_disk_takes_too_long(
    tmp_path: Path, aiohttp_client: Connect
) -> None:
    async with own_pages(tmp_path, aiohttp_client, limit=LIMIT) as pages:
        await pages.call()
        with nobody_writes(pages.data):
            note = b'{"kind": "decision", "text": "ask first"}'
            written = asyncio.ensure_future(pages.api("/sessions/trip/notes", "POST", note))
            await asyncio.wait({written}, timeout=LONG)
            said = (await pages.api("/log")).problem(503)
            assert said["detail"] == "this took more than 0.05 s, ask for less"
        assert (await written).status == 200
