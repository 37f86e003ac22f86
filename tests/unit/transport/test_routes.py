import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.transport.routes import Route, Routes, origin_form, own_path, target_of

FILES = target_of("files", "http://127.0.0.1:9000/base/mcp?key=1")
GIT = target_of("git", "https://git.example:8443")
TWO = Routes([FILES, GIT])
ONE = Routes([FILES])

CHARACTERS = st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="?#")
RESTS = st.text(CHARACTERS, max_size=30).map("/".__add__)
QUERIES = st.one_of(st.just(""), st.text(CHARACTERS, max_size=30).map("?".__add__))


def found(routes: Routes, target: str) -> Route:
    route = routes.find(origin_form(target))
    assert route is not None
    return route


def test_a_target_says_where_its_server_is() -> None:
    assert (FILES.origin, FILES.path, FILES.query) == (
        "http://127.0.0.1:9000",
        "/base/mcp",
        "key=1",
    )
    assert FILES.authority == b"127.0.0.1:9000"
    assert (GIT.origin, GIT.path, GIT.query) == ("https://git.example:8443", "/", "")


@pytest.mark.promise("WIRE-26")
@given(rest=RESTS, query=QUERIES)
def test_the_path_after_an_upstreams_name_is_unchanged(rest: str, query: str) -> None:
    route = found(TWO, "/git" + rest + query)
    assert (route.target, route.resource, route.session) == (GIT, rest + query, "")


@given(rest=RESTS, query=QUERIES)
def test_an_absolute_target_means_the_same(rest: str, query: str) -> None:
    absolute = found(TWO, f"http://any.where:1/git{rest}{query}")
    assert absolute == found(TWO, "/git" + rest + query)


@given(path=RESTS, query=QUERIES)
def test_the_only_server_has_all_paths_that_are_not_taken(path: str, query: str) -> None:
    route = found(ONE, "/x" + path + query)
    assert route.resource == "/x" + path + query


@pytest.mark.promise("WIRE-26")
@pytest.mark.parametrize(
    ("target", "resource"),
    [
        ("/files", "/base/mcp?key=1"),
        ("/files?", "/base/mcp?key=1"),
        ("/files?a=b", "/base/mcp?key=1&a=b"),
        ("/base/mcp", "/base/mcp?key=1"),
        ("/base/mcp?a", "/base/mcp?key=1&a"),
        ("/base/mcp/", "/base/mcp/"),
        ("/base/mcp2", "/base/mcp2"),
        ("/", "/"),
        ("/?", "/?"),
        ("/files/", "/"),
        ("/s/one/base/mcp", "/base/mcp?key=1"),
        ("/s/one/files", "/base/mcp?key=1"),
        ("/s/one", "/"),
        ("/s", "/s"),
        ("http://h", "/"),
        ("http://h?q", "/?q"),
    ],
)
def test_the_only_server_is_found_by_name_and_by_its_own_paths(target: str, resource: str) -> None:
    assert found(ONE, target).resource == resource


@pytest.mark.parametrize(
    "target",
    ["/", "/mcp", "/Files", "/filesX", "/fil%65s", "//files", "/s/one", "/s/one/other", "*"],
)
def test_with_several_servers_one_must_be_named(target: str) -> None:
    assert TWO.find(origin_form(target)) is None


PLACES = ["", "/files", "/s/one", "/s/one/files", "/s/files", "/s/s"]


@pytest.mark.promise("REDIR-1")
@given(
    place=st.sampled_from(PLACES),
    path=st.one_of(
        RESTS,
        st.sampled_from(
            ("/base/mcp", "/s/x", "/s", "/turnlog/health", "/files/x", "/files", "//a/b")
        ),
    ),
    query=st.one_of(QUERIES, st.sampled_from(("?key=1", "?key=1&a=b", "?key=12", "?"))),
)
def test_the_agents_path_of_a_resource_leads_to_it_in_the_same_session(
    place: str, path: str, query: str
) -> None:
    # A plain place of the only upstream has its path, a named one needs none.
    route = found(ONE, place if place.endswith("/files") and place != "/s/files" else place + "/x")
    back = route.back(path + query)
    assert not back.startswith("//")
    again = found(ONE, back)
    assert (again.resource, again.session) == (path + query, route.session)


@pytest.mark.parametrize(
    ("asked", "reference", "agents"),
    [
        # By name.
        ("/files", "/base/mcp/", "/files/base/mcp/"),
        ("/files", "http://127.0.0.1:9000/base/mcp/", "/files/base/mcp/"),
        ("/files", "//127.0.0.1:9000/base/mcp/?a=b#c", "/files/base/mcp/?a=b#c"),
        ("/files", "mcp/", "/files/base/mcp/"),
        ("/files", "../x", "/files/x"),
        ("/files", "../../../x", "/files/x"),
        ("/files", "?a=b", "/files/base/mcp?a=b"),
        ("/files", "", "/files/base/mcp?key=1"),
        ("/s/one/files/a/b", "c", "/s/one/files/a/c"),
        # By the plain path of the only upstream: what names no origin leads there as it is.
        ("/base/mcp", "/base/mcp/", None),
        ("/base/mcp", "mcp/", None),
        ("/base/mcp", "http://127.0.0.1:9000/base/mcp/", "/base/mcp/"),
        ("/base/mcp", "http://127.0.0.1:9000", "/"),
        ("/s/one/base/mcp", "/base/mcp/", "/s/one/base/mcp/"),
        # The configured query is added to the configured path anyhow.
        ("/x", "/base/mcp?key=1&a=b", "/base/mcp?a=b"),
        ("/x", "/base/mcp?key=1", "/base/mcp"),
        ("/x", "/base/mcp", "/files/base/mcp"),
        # The upstream's own path looks like one of turnlog's.
        ("/x", "/s/y/z", "/files/s/y/z"),
        ("/x", "/turnlog/health", "/files/turnlog/health"),
        ("/x", "/files/y", "/files/files/y"),
        ("/x", "http://127.0.0.1:9000//y", "/files//y"),
        # The agent's own Host, which the upstream has from X-Forwarded-Host.
        ("/files", "http://agent.example:7411/base/mcp/", "/files/base/mcp/"),
        ("/files", "https://agent.example:7411/files/base/mcp/", None),
        ("/base/mcp", "http://agent.example:7411/oauth/callback?code=1", None),
        ("/s/one/base/mcp", "http://agent.example:7411/base/mcp/", "/s/one/base/mcp/"),
        # Other origins.
        ("/files", "http://127.0.0.1:9001/base/mcp/", None),
        ("/files", "https://127.0.0.1:9000/base/mcp/", None),
        ("/files", "http://git.example/", None),
        ("/files", "//git.example/", None),
        ("/files", "http://user@127.0.0.1:9000/", None),
        ("/files", "mailto:someone", None),
        ("/files", "/\\git.example/", None),
    ],
)
def test_a_reference_of_the_upstreams_own_origin_leads_back_here(
    asked: str, reference: str, agents: str | None
) -> None:
    assert found(ONE, asked).led_back(reference, "agent.example:7411") == agents


@pytest.mark.parametrize(
    ("segment", "session"),
    [("one", "one"), ("a%20b", "a b"), ("caf%C3%A9", "café"), ("a%2Fb", "a/b"), ("%zz", "%zz")],
)
def test_a_session_is_named_by_its_segment(segment: str, session: str) -> None:
    assert found(TWO, f"/s/{segment}/git/x").session == session


def test_a_session_without_a_name_is_no_route() -> None:
    assert TWO.find("/s//files") is None


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/s/my%20run/turnlog/mcp", ("my run", "/turnlog/mcp")),
        ("/s/x/turnlog", ("x", "/turnlog")),
        ("/s/x/turnlogs", None),
        ("/s//turnlog/mcp", None),
        ("/s/x", None),
        ("/s", None),
        ("/x/y/turnlog/mcp", None),
        ("*", None),
    ],
)
def test_a_path_of_turnlogs_own_may_name_a_session(path: str, own: tuple[str, str] | None) -> None:
    assert own_path(path) == own
    assert own is None or (TWO.find(path), ONE.find(path)) == (None, None)
