"""Several tool servers behind one port: routing, and that nothing crosses over."""

from collections.abc import Iterator

import pytest
from msgspec import Struct

from kit.beside import proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.proxy import Proxy
from kit.upstreams import RawUpstream, answer, echo, ok
from turnlog.sessions.rows import Row


class Two(Struct):
    """A proxy before two servers, both at a path with a query."""

    proxy: Proxy
    files: RawUpstream
    git: RawUpstream

    def client(self) -> Client:
        return Client(self.proxy.urls[0])

    def targets(self) -> tuple[list[bytes], list[bytes]]:
        """Return what each server was asked."""
        return (
            [request.target for request in self.files.requests],
            [request.target for request in self.git.requests],
        )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with (
        RawUpstream() as files,
        RawUpstream() as git,
        proxy_beside(
            tmp_path_factory.mktemp("proxy"),
            f"files={files.origin}/base/mcp?key=1",
            f"git={git.origin}/mcp",
        ) as proxy,
    ):
        yield Two(proxy, files, git)


@pytest.fixture
def two(shared: Two) -> Two:
    for upstream in (shared.files, shared.git):
        upstream.script = echo
        upstream.requests.clear()
    return shared


ROUTES = [
    ("/files", b"/base/mcp?key=1", None),
    ("/files?x=2", b"/base/mcp?key=1&x=2", None),
    ("/files/", b"/", None),
    ("/files/a/b?x=1", b"/a/b?x=1", None),
    ("/files/a%2Fb/../c//d", b"/a%2Fb/../c//d", None),
    ("/files//double", b"//double", None),
    ("/git", None, b"/mcp"),
    ("/git/mcp", None, b"/mcp"),
    ("/git/.well-known/oauth-protected-resource", None, b"/.well-known/oauth-protected-resource"),
    ("/s/one/git", None, b"/mcp"),
    ("/s/one/git/rest?y", None, b"/rest?y"),
    ("/s/a%20b/files/x", b"/x", None),
    ("/s/git/files", b"/base/mcp?key=1", None),
]


@pytest.mark.promise("WIRE-26")
@pytest.mark.parametrize(("path", "files", "git"), ROUTES, ids=[route[0] for route in ROUTES])
def test_a_path_names_its_server(
    two: Two, path: str, files: bytes | None, git: bytes | None
) -> None:
    with two.client() as client:
        assert client.request("GET", path).status == 200
    assert two.targets() == ([files] if files else [], [git] if git else [])


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/mcp",
        "/base/mcp",
        "/Files",
        "/filesx",
        "/fil%65s",
        "//files",
        "/s/one",
        "/s//files",
        "/s",
        "/s/",
    ],
)
def test_a_path_that_names_no_server_gets_404_from_turnlog(two: Two, path: str) -> None:
    with two.client() as client:
        given = client.request("GET", path)
        assert (given.status, given.head.one("content-type")) == (404, "application/problem+json")
        assert "/files" in given.json()["detail"]
        assert client.request("GET", "/git").status == 200
    assert two.targets() == ([], [b"/mcp"])


@pytest.mark.promise("SEC-10")
def test_each_server_gets_its_own_host_and_only_what_was_sent_to_it(two: Two) -> None:
    with two.client() as client:
        client.request(
            "GET",
            "/files/x",
            headers=(("Authorization", "Bearer files"), ("Cookie", "a=1"), ("Mcp-Session-Id", "f")),
        )
        client.request("GET", "/git/x")
    (files,), (git,) = two.files.requests, two.git.requests
    assert files.all(b"host") == [f"127.0.0.1:{two.files.port}".encode()]
    assert git.all(b"host") == [f"127.0.0.1:{two.git.port}".encode()]
    assert files.all(b"authorization") == [b"Bearer files"]
    assert [name for name, _ in git.headers] == [b"Host", b"Via", b"X-Forwarded-Host"]


COOKIES = [
    ("a=1", "a=1; Path=/files"),
    ("a=1; Path=/", "a=1; Path=/files"),
    ("a=1; Path=/base", "a=1; Path=/files"),
    ("a=1; Path=/base/mcp; HttpOnly", "a=1; HttpOnly; Path=/files"),
    ("a=1; path=/other; Secure", "a=1; Secure; Path=/files/other"),
    ("a=1; Domain=example.com; Path=/", "a=1; Path=/files"),
    ("a=1; DOMAIN=.x; SameSite=Lax", "a=1; SameSite=Lax; Path=/files"),
    (
        'a="x y"; Expires=Thu, 01 Jan 2099 00:00:00 GMT',
        'a="x y"; Expires=Thu, 01 Jan 2099 00:00:00 GMT; Path=/files',
    ),
    ("a=1; Path=/../git", "a=1; Path=/files/../git"),
]


@pytest.mark.promise("WIRE-27")
@pytest.mark.parametrize(("cookie", "wanted"), COOKIES)
def test_a_cookie_stays_with_its_server(two: Two, cookie: str, wanted: str) -> None:
    two.files.script = answer(ok(b"{}", headers=f"Set-Cookie: {cookie}\r\nSet-Cookie: b=2\r\n"))
    with two.client() as client:
        given = client.request("GET", "/files")
    assert given.head.all("set-cookie") == [wanted, "b=2; Path=/files"]


def test_the_log_names_the_server_of_each_call(two: Two) -> None:
    with two.client() as client:
        for path in ("/s/named/files", "/s/named/git"):
            client.request("POST", path, call("add"), headers=MCP_HEADERS)
    wait_until(lambda: len(session_rows(two.proxy.data, "named")) == 2, "two rows")
    assert [row.server for row in session_rows(two.proxy.data, "named")] == ["files", "git"]


def test_one_servers_protocol_session_is_not_anothers(two: Two) -> None:
    headers = (*MCP_HEADERS, ("Mcp-Session-Id", "the-same-for-both"))
    with two.client() as client:
        for path in ("/files", "/git"):
            client.request("POST", path, call(f"same-{path[1:]}"), headers=headers)
    wait_until(lambda: len(mine(two)) == 2, "two rows")
    assert len({row.session for row in mine(two)}) == 2


def mine(two: Two) -> list[Row]:
    return [row for row in two.proxy.rows() if row.tool.startswith("same-")]


HOSTS = [
    ("127.0.0.1", 200),
    ("127.0.0.1:80", 200),
    ("LOCALHOST:1234", 200),
    ("localhost.", 200),
    ("127.1.2.3", 200),
    ("[::1]:7411", 200),
    ("evil.example", 421),
    ("127.0.0.1.evil.example", 421),
    ("localhost.evil.example", 421),
    ("evil.example:7411", 421),
    ("0.0.0.0", 421),
    ("[::ffff:8.8.8.8]", 421),
    ("user@localhost", 421),
    ("localhost,evil.example", 421),
    ("", 421),
]


@pytest.mark.promise("SEC-8")
@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_only_hosts_that_mean_this_machine_are_served(two: Two, host: str, status: int) -> None:
    with two.client() as client:
        given = client.request("GET", "/git", headers=(("Host", host),))
        assert given.status == status
        assert client.request("GET", "/git").status == 200
    assert len(two.git.requests) == (2 if status == 200 else 1)


ORIGINS = [
    ("http://localhost", 200),
    ("http://127.0.0.1:3000", 200),
    ("https://localhost:8443", 200),
    ("http://[::1]:1", 200),
    ("null", 403),
    ("http://evil.example", 403),
    ("https://localhost.evil.example", 403),
    ("file://", 403),
    ("http://localhost@evil.example", 403),
    ("http://localhost/path", 403),
]


@pytest.mark.promise("SEC-9")
@pytest.mark.parametrize(("origin", "status"), ORIGINS)
def test_only_pages_of_this_machine_may_call(two: Two, origin: str, status: int) -> None:
    with two.client() as client:
        given = client.request(
            "POST", "/git", call("add"), headers=(*MCP_HEADERS, ("Origin", origin))
        )
        assert given.status == status
        assert client.request("GET", "/git").status == 200
    assert len(two.git.requests) == (2 if status == 200 else 1)


@pytest.mark.promise("SEC-8")
def test_the_host_of_an_absolute_target_counts_as_well(two: Two) -> None:
    with two.client() as client:
        given = client.request("GET", "http://evil.example/git")
    assert given.status == 421
    assert two.git.requests == []


def test_tunnels_are_not_opened(two: Two) -> None:
    with two.client() as client:
        client.send(b"CONNECT example.com:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.head().status >= 400


@pytest.mark.promise("API-8")
def test_health_and_readiness_are_turnlogs_own(two: Two) -> None:
    with two.client() as client:
        assert client.request("GET", "/turnlog/health").json() == {"status": "ok"}
        assert client.request("GET", "/turnlog/ready").json()["status"] == "ready"
        assert client.request("HEAD", "/turnlog/health").status == 200
        assert client.request("POST", "/turnlog/health", b"x").status == 405
        assert client.request("GET", "/turnlog/unknown").status == 404
        assert client.request("GET", "/turnlog").status == 404
    assert two.targets() == ([], [])


def test_a_host_that_the_operator_allows_is_served(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"allow_hosts": ["proxy.internal:7411", "agents.example"]}
    folder = tmp_path_factory.mktemp("proxy")
    with (
        RawUpstream() as upstream,
        proxy_beside(folder, upstream.url, settings=settings) as proxy,
        Client(proxy.url) as client,
    ):
        seen = [
            client.request("GET", "/x", headers=(("Host", host),)).status
            for host in ("proxy.internal:7411", "proxy.internal", "agents.example:99", "other")
        ]
    assert seen == [200, 421, 200, 421]
