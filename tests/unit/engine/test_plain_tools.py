"""What is remembered of plain HTTP tools, and what ends that."""

from pathlib import Path

from msgspec import Struct

from turnlog.core.kinds import Effect
from turnlog.engine.request_identity import Clients, Request
from turnlog.engine.tools.pin_set import PinSet
from turnlog.engine.tools.server_identities import ServerIdentities
from turnlog.engine.tools.tool_cache import ActiveRules, HttpToolCache
from turnlog.record.attempt import Ask
from turnlog.rules.model import Access, Match, Rule
from turnlog.rules.policy import Rulebook
from turnlog.transport.message_heads import RequestHead, RequestStart
from turnlog.transport.routes import Route, Target

TARGET = Target(
    name="shop",
    origin="http://127.0.0.1:1",
    path="/",
    query="",
    authority=b"127.0.0.1:1",
    host="127.0.0.1",
    port=1,
    place=("http://127.0.0.1:1",),
)


class Where(Struct):
    """What tools are worked out from, and what is remembered of them."""

    rules: ActiveRules
    tools: HttpToolCache

    def tool(
        self,
        path: str = "/orders/7",
        *,
        method: str = "GET",
        version: tuple[int, int] = (1, 1),
        fields: dict[bytes, bytes] | None = None,
        arguments: object = None,
    ) -> Ask:
        """Return what is known of the tool behind a request."""
        given = fields or {}
        text = {name: value.decode() for name, value in given.items()}
        head = RequestHead(tuple(given.items()), given, text, frozenset())
        asked = RequestStart(method=method, target=path, version=version, keeps=True, head=head)
        route = Route(TARGET, path, "", "", "")
        request = Request(asked, route, lambda data: data.ljust(32), Clients(), 1)
        return self.tools.find(request, path, lambda: arguments)


def where(*rules: Rule) -> Where:
    book = ActiveRules(Rulebook(rules, {}, ()))
    identities = ServerIdentities(PinSet(Path("/nonexistent/turnlog.lock")), lambda _: None)
    return Where(book, HttpToolCache(book, lambda name: name.strip("!"), identities))


def test_a_tool_is_worked_out_once_for_all_its_paths() -> None:
    here = where()
    assert here.tool("/orders/7") is here.tool("/orders/8")
    assert here.tool("/orders/7").tool == "GET /orders/*"


def test_a_method_is_clean_before_a_tool_is_called_by_it() -> None:
    found = where().tool(method="!GET!")
    assert (found.tool, found.method) == ("GET /orders/*", "GET")


def test_a_different_definition_is_another_tool() -> None:
    here = where()
    found = (
        here.tool(),
        here.tool("/orders"),
        here.tool(method="DELETE"),
        here.tool(version=(1, 0)),
        here.tool(fields={b"authorization": b"Bearer x"}),
    )
    told = {(one.tool, one.method, one.effect, one.protocol, one.principal) for one in found}
    assert len(told) == len(found)


def test_other_rules_count_at_once() -> None:
    here = where()
    assert here.tool().effect is Effect.READ
    here.rules.book = Rulebook((Rule(name="w", effect=Effect.WRITE),), {}, ())
    assert here.tool().effect is Effect.WRITE
    assert here.tool().is_named


def test_a_policy_that_depends_on_arguments_is_not_cached() -> None:
    here = where(Rule(name="w", match=Match(when=("$.args.force",)), effect=Effect.WRITE))
    given: tuple[dict[str, int], ...] = ({"force": 1}, {}, {"force": 1})
    effects = [here.tool(arguments=each).effect for each in given]
    assert effects == [Effect.WRITE, Effect.READ, Effect.WRITE]


def test_a_policy_that_depends_on_paths_is_cached_by_path() -> None:
    here = where(Rule(name="w", match=Match(path=("/orders/7",)), effect=Effect.WRITE))
    found = [here.tool(f"/orders/{number}") for number in (8, 7, 8)]
    assert [one.effect for one in found] == [Effect.READ, Effect.WRITE, Effect.READ]
    assert [one.tool for one in found] == ["GET /orders/*", "GET /orders/7", "GET /orders/*"]


def test_an_encoded_path_is_denied_whatever_is_remembered_under_its_tool_name() -> None:
    here = where(Rule(name="no", match=Match(tool=("GET /secret",)), access=Access.DENY))
    plain, encoded = here.tool("/7"), here.tool("/%73ecret")
    assert plain.tool == encoded.tool == "GET /*"
    assert [one.policy.access for one in (plain, encoded)] == [Access.ALLOW, Access.DENY]
    assert here.tool("/7") is plain


def test_names_are_clean_and_methods_moderate() -> None:
    here = where()
    odd = here.tool(method="!" + "A" * 300)
    assert odd.method == "A" * 256
    assert not odd.tool.startswith("!")


def test_no_more_tools_are_remembered_than_there_is_room_for() -> None:
    here = where()
    first = here.tool("/0x")
    names = ("".join(chr(ord("a") + int(digit)) for digit in f"{n}") for n in range(4096))
    last = [here.tool(f"/{name}") for name in names][-1]
    assert here.tool("/0x") is not first
    assert here.tool(f"/{last.tool.partition('/')[2]}") is last
