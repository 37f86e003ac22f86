import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.serve.routes import Route, Routes, origin_form, own_path, target_of

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


@given(rest=RESTS, query=QUERIES)
def test_what_stands_behind_a_name_goes_on_unchanged(rest: str, query: str) -> None:
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
def test_of_several_servers_one_must_be_named(target: str) -> None:
    assert TWO.find(origin_form(target)) is None


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
