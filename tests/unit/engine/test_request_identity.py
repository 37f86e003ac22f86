"""`engine.request_identity`: which session the calls of a connection mean, and what ends that."""

import hmac

import pytest
from msgspec import structs

from turnlog.core.identity import SessionIdentity, Vendor
from turnlog.core.kinds import Rung
from turnlog.engine.request_identity import Client, Clients, Request, Sessions
from turnlog.observe.clock import Clock
from turnlog.transport.message_heads import RequestHead, RequestStart, read_request
from turnlog.transport.routes import Route, Routes, target_of

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

    def meant(self, client: Client = ONE, meta: dict[str, bytes] | None = None) -> SessionIdentity:
        return self.request.session_identity(self.sessions, client, meta or {})


@pytest.fixture
def told() -> Told:
    return Told()


def test_what_calls_mean_that_name_no_session_is_worked_out_once(told: Told) -> None:
    first = told.meant()
    assert told.meant() is first
    assert told.meant(meta={"progressToken": b"1"}) is first


def test_a_message_that_names_a_session_counts_alone(told: Told) -> None:
    first = told.meant()
    assert told.meant(meta={"acme/chat": b'"7"'}).rung is Rung.VENDOR
    assert told.meant() is first


def test_another_client_on_the_connection_means_another_session(told: Told) -> None:
    first = told.meant()
    assert told.meant(OTHER).client == "other"
    assert told.meant() is not told.meant(OTHER)
    assert told.meant() == first


def test_a_client_that_tells_its_name_late_counts_from_then_on(told: Told) -> None:
    assert told.meant(Client()).client == ""
    told.clients[told.request.scope] = OTHER
    assert told.meant(Client()).client == "other"


def told_by(url: str, path: str, *headers: tuple[bytes, bytes]) -> Request:
    route = Routes([target_of("files", url)]).find(path)
    assert route is not None
    head = read_request(headers)
    asked = RequestStart(method="POST", target=path, version=(1, 1), keeps=True, head=head)
    return Request(asked, route, keyed, Clients(), 7)


def keyed(data: bytes) -> bytes:
    return hmac.digest(b"key", data, "sha256")


BASE = "http://127.0.0.1:1/mcp"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (BASE, "/other/mcp"),
        (BASE, "/mcp?project=one"),
        (f"{BASE}?project=one", "/mcp"),
        (f"{BASE}?api_key=one", "/mcp"),
        ("http://127.0.0.1:2/mcp", "/mcp"),
        ("http://localhost:1/mcp", "/mcp"),
        ("https://127.0.0.1:1/mcp", "/mcp"),
    ],
)
def test_another_origin_path_or_query_is_another_target(url: str, path: str) -> None:
    assert told_by(url, path).target != told_by(BASE, "/mcp").target


@pytest.mark.parametrize(
    "path", ["/files", "/s/one/files", "/s/one/mcp", "/mcp?api_key=mine", "/mcp/"]
)
def test_names_sessions_and_credentials_are_no_part_of_the_target(path: str) -> None:
    assert told_by(BASE, path).target == told_by(BASE, "/mcp").target


def test_the_configured_port_may_be_the_schemes_own() -> None:
    assert told_by("http://A/mcp", "/mcp").target == told_by("http://a:80/mcp", "/mcp").target


def test_each_credential_of_a_request_is_part_of_its_principal() -> None:
    headers = (b"Authorization", b"Bearer a"), (b"Accept", b"*/*")
    alone = told_by(BASE, "/mcp", *headers).credential
    both = told_by(BASE, "/mcp", *headers, (b"Private-Token", b"b")).credential
    assert len({"", alone, both}) == 3


def test_a_key_that_the_operator_configured_is_no_credential_of_the_agents() -> None:
    assert told_by(f"{BASE}?api_key=one", "/mcp").credential == ""
    assert told_by(f"{BASE}?api_key=one", "/mcp?api_key=two").credential != ""


def test_an_agent_that_asks_another_target_on_its_connection_is_in_another_session() -> None:
    request = told_by(BASE, "/mcp")
    clock = Clock(wall=lambda: 0, monotonic=lambda: 0, entropy=bytes)
    sessions = Sessions(clock, VENDORS, str, keyed)
    keys: list[str] = []
    for path in ("/mcp", "/other", "/other?token=a"):
        route = Routes([target_of("files", BASE)]).find(path)
        assert route is not None
        asked = structs.replace(request.asked, target=path)
        other = Request(asked, route, keyed, Clients(), 7)
        keys.append(other.session_identity(sessions, ONE).key)
    assert len(set(keys)) == 3


def test_what_a_connection_told_counts_for_another_path_with_that_paths_target() -> None:
    request, target = told_by(BASE, "/mcp"), target_of("files", BASE)
    first = request.target
    found = [Route(target, "/other", "", "", ""), Route(target, "/mcp", "?token=a", "", "")]
    asked = structs.replace(request.asked, target="/other")
    other = request.elsewhere(asked, structs.replace(found[0], target=request.route.target))
    assert other is not None
    assert (other.target == first, other.credential) == (False, "")
    assert other.target == told_by(BASE, "/other").target
    assert request.elsewhere(asked, structs.replace(found[1], target=request.route.target)) is None
