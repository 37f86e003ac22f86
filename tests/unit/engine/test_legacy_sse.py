"""`engine.legacy_sse`: where the endpoint of an HTTP+SSE stream leads, and what is asked there."""

import pytest

from turnlog.engine.legacy_sse import LegacyStreams, endpoint_of, renamed
from turnlog.transport.routes import Route, Routes, target_of
from turnlog.wire.jsonrpc import Kind, Message

ROUTES = Routes([target_of("old", "http://127.0.0.1:9000/base/sse?key=1")])


def route(target: str) -> Route:
    found = ROUTES.find(target)
    assert found is not None
    return found


NAMED = [
    ("/messages?id=1", "/messages?id=1"),
    ("messages/?id=1", "/base/messages/?id=1"),
    ("?id=1", "/base/sse?id=1"),
    ("http://127.0.0.1:9000/messages", "/messages"),
    ("HTTP://127.0.0.1:9000/messages", "/messages"),
    ("http://127.0.0.1:9001/messages", ""),
    ("https://127.0.0.1:9000/messages", ""),
    ("//elsewhere/messages", ""),
    ("http://[bad", ""),
]


@pytest.mark.parametrize(("named", "endpoint"), NAMED)
def test_an_endpoint_is_named_from_where_the_stream_is(named: str, endpoint: str) -> None:
    assert endpoint_of(route("/old"), named, "") == endpoint


@pytest.mark.parametrize(("named", "endpoint"), [pair for pair in NAMED if pair[1]])
def test_behind_a_prefix_every_name_becomes_one_that_leads_back(named: str, endpoint: str) -> None:
    said = renamed(route("/s/mine/old"), named, "")
    assert said == f"/s/mine/old{endpoint}".encode()


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("/messages", None),
        ("messages", None),
        ("http://127.0.0.1:9000/messages", b"/messages"),
    ],
)
def test_without_a_prefix_only_an_origin_is_taken_out(named: str, said: bytes | None) -> None:
    assert renamed(route("/base/sse"), named, "") == said


def test_the_later_of_two_streams_with_one_endpoint_counts() -> None:
    channels = LegacyStreams()
    first, second = channels.open("old", "/m"), channels.open("old", "/m")
    assert channels.find(route("/old/m")) is second
    channels.close(first)
    assert channels.find(route("/old/m")) is second
    channels.close(second)
    assert channels.find(route("/old/m")) is None
    assert not second.is_open


def test_a_request_is_remembered_until_its_answer_comes() -> None:
    channel = LegacyStreams().open("old", "/m")
    asked = Message(kind=Kind.REQUEST, method="tools/list", id=b"1")
    channel.expect(asked)
    channel.expect(Message(kind=Kind.NOTIFICATION, method="notifications/initialized"))
    assert channel.asked("1") is asked
    assert channel.asked("1") is None


def test_only_so_many_requests_are_remembered() -> None:
    channel = LegacyStreams().open("old", "/m")
    for number in range(2000):
        channel.expect(Message(kind=Kind.REQUEST, method="ping", id=b"%d" % number))
    assert channel.asked("0") is None
    assert channel.asked("1999") is not None
