"""`sessions.recall`: recorded answers from a real store."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from e2e.stores import Call, call_id, fill, session_id
from turnlog.core import ids
from turnlog.core.kinds import Gone, Status
from turnlog.sessions.errors import NotRecallableError
from turnlog.sessions.recall import recall
from turnlog.store.lmdb import LmdbReader
from turnlog.store.read.view import View

WORK = session_id("work")
IMAGE = b'{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"}]}'
CALLS = [
    Call(tool="read", minute=0),
    Call(tool="draw", minute=1, output=IMAGE),
    Call(tool="fail", minute=2, output=b"\xff\xfe", status=Status.ERROR, error="timeout"),
    Call(tool="fail", minute=3, output=b"", status=Status.ERROR),
    Call(tool="odd", minute=4, output=b'{"content": NaN'),
    Call(tool="wait", minute=5, status=None),
    Call(tool="read", minute=6, session="other"),
    Call(tool="again", minute=7, output=b'{"content":[]}', status=Status.ERROR, error="connection"),
    Call(tool="again", minute=7, attempt=2, of=7, output=b""),
]
"""Commits of a call at place N of the session: 2N + 1, 2N + 2."""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    data: Path = tmp_path_factory.mktemp("recall")
    fill(data, CALLS)
    with LmdbReader.open(data) as reader, reader.view() as view:
        yield view


def why_not(view: View, key: str) -> str:
    with pytest.raises(NotRecallableError) as caught:
        recall(view, WORK, key)
    return str(caught.value)


@pytest.mark.parametrize("key", [ids.to_text(call_id(0)), "1", "2"])
def test_a_result_is_recalled_with_its_text_and_blocks(view: View, key: str) -> None:
    found = recall(view, WORK, key)
    told = found.recalled
    assert (told.key, told.text, told.tool, told.server, told.seq) == (
        key, "hello", "read", "files", 2,
    )  # fmt: skip
    assert (told.call, told.status, told.error) == (ids.to_text(call_id(0)), "ok", None)
    assert [msgspec.json.decode(block) for block in found.blocks] == [
        {"type": "text", "text": "hello"}
    ]


def test_a_result_with_other_blocks_is_recalled_as_json(view: View) -> None:
    found = recall(view, WORK, "3")
    assert found.recalled.text == IMAGE.decode()
    assert len(found.blocks) == 1


def test_an_answer_that_is_not_json_is_recalled_as_text(view: View) -> None:
    found = recall(view, WORK, "9")
    assert (found.recalled.text, found.blocks) == ('{"content": NaN', [])


def test_an_earlier_answer_is_recalled_when_the_newest_has_none(view: View) -> None:
    found = recall(view, WORK, "13")
    assert (found.recalled.text, found.recalled.error) == ('{"content":[]}', "connection")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("5", "the answer to '5' is not text"),
        ("7", "the call '7' left no answer in the log"),
        ("11", "'11' is not an ended call of this session"),
        ("0", "'0' is not an ended call of this session"),
        ("99", "'99' is not an ended call of this session"),
        ("notes.txt", "'notes.txt' is not an ended call of this session"),
        (ids.to_text(call_id(6)), "is not an ended call of this session"),
    ],
)
def test_the_error_says_why_an_answer_cannot_be_recalled(view: View, key: str, why: str) -> None:
    assert why in why_not(view, key)


@pytest.mark.promise("STORE-8")
@pytest.mark.parametrize("why", Gone)
def test_the_error_says_why_an_answer_is_gone(tmp_path: Path, why: Gone) -> None:
    fill(tmp_path, CALLS[:1])
    for bucket in (tmp_path / "blobs").iterdir():
        bucket.rename(tmp_path / bucket.name)
        if why is not Gone.DAMAGED:
            (tmp_path / "blobs" / f"{why}-{bucket.name}").mkdir()
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        assert why_not(view, "1").startswith("the call '1' was answered, and that ")
        assert f" {why}" in why_not(view, "1")
