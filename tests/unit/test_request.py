"""`serve.request`: which session the calls of a connection mean, and what ends that."""

import pytest

from turnlog.core.identity import Vendor
from turnlog.core.kinds import Rung
from turnlog.serve.clock import Clock
from turnlog.serve.heads import RequestHead, RequestStart
from turnlog.serve.identity import Client, Clients, Meant, Sessions
from turnlog.serve.request import Request
from turnlog.serve.routes import Routes, target_of

VENDORS = (Vendor(name="acme", session=(("acme/chat",),)),)
ONE, OTHER = Client("one"), Client("other")


def digest(data: bytes) -> bytes:
    return data.ljust(32, b"\0")


class Told:
    """A request of a connection, and the sessions that its calls mean."""

    def __init__(self) -> None:
        head = RequestHead((), {}, {}, frozenset())
        asked = RequestStart(method="POST", target="/mcp", version=(1, 1), keeps=True, head=head)
        route = Routes([target_of("files", "http://127.0.0.1:1/mcp")]).find("/mcp")
        assert route is not None
        self.clients = Clients()
        self.request = Request(asked, route, digest, self.clients, 7)
        clock = Clock(wall=lambda: 0, monotonic=lambda: 0, entropy=bytes)
        self.sessions = Sessions(clock, VENDORS, str, digest)

    def meant(self, client: Client = ONE, meta: dict[str, bytes] | None = None) -> Meant:
        return self.request.meant(self.sessions, frozenset(), client, meta or {})


@pytest.fixture
def told() -> Told:
    return Told()


def test_what_calls_mean_that_name_no_session_is_worked_out_once(told: Told) -> None:
    first = told.meant()
    assert told.meant() is first
    assert told.meant(meta={"progressToken": b"1"}) is first


def test_a_message_that_names_a_session_counts_alone(told: Told) -> None:
    first = told.meant()
    assert told.meant(meta={"acme/chat": b'"7"'}).identity.rung is Rung.VENDOR
    assert told.meant() is first


def test_another_client_on_the_connection_means_another_session(told: Told) -> None:
    first = told.meant()
    assert told.meant(OTHER).identity.client == "other"
    assert told.meant() is not told.meant(OTHER)
    assert told.meant().identity == first.identity


def test_a_client_that_tells_its_name_late_counts_from_then_on(told: Told) -> None:
    assert told.meant(Client()).identity.client == ""
    told.clients.learn(told.request.scope, OTHER)
    assert told.meant(Client()).identity.client == "other"
