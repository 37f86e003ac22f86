"""What is remembered of tools, and what ends that."""

from pathlib import Path

from msgspec import Raw, Struct

from turnlog.core.kinds import Effect, Flag
from turnlog.core.pins import Provenance
from turnlog.engine.request_identity import Clients, Request
from turnlog.engine.tools.pin_set import PinSet
from turnlog.engine.tools.server_identities import ServerIdentities
from turnlog.engine.tools.tool_cache import ActiveRules, ToolCache, ToolListings
from turnlog.packs.lock import LockFile, Pin, lock_name, write_lock
from turnlog.record.attempt import Ask
from turnlog.rules.model import Match, Rule
from turnlog.rules.policy import Rulebook
from turnlog.transport.message_heads import RequestHead, RequestStart
from turnlog.transport.routes import Route, target_of
from turnlog.wire.tools_list import read_tools_list

READS = '{"name":"t","annotations":{"readOnlyHint":true}}'
WRITES = '{"name":"t","annotations":{"readOnlyHint":false}}'
READS_DIGEST = read_tools_list(Raw(f'{{"tools":[{READS}]}}'.encode())).definitions["t"].digest

HEAD = RequestHead((), {}, {}, frozenset())
REQUEST = Request(
    RequestStart(method="POST", target="/mcp", version=(1, 1), keeps=True, head=HEAD),
    Route(target_of("files", "http://127.0.0.1:9000/mcp"), "/mcp", "", "", ""),
    lambda data: data.ljust(32),
    Clients(),
    1,
)


class Where(Struct):
    """What tools are worked out from, and what is remembered of them."""

    catalog: ToolListings
    pins: PinSet
    rules: ActiveRules
    known: ToolCache

    def lists(self, tool: str) -> None:
        """Let the server list one tool."""
        page = read_tools_list(Raw(f'{{"tools":[{tool}]}}'.encode()))
        self.catalog.learn(REQUEST.target, REQUEST.credential, page, first=True)

    def pin(self, digest: bytes) -> None:
        """Pin the tool, and let the lock be read again: what changed has to stay for one look."""
        pin = Pin(hash=f"sha256:{digest.hex()}", definition={}, partial=True)
        name = lock_name("files", REQUEST.place, str(self.pins.path.parent))
        write_lock(self.pins.path, LockFile(servers={name: {"t": pin}}))
        assert self.pins.refresh() is None
        assert self.pins.refresh() is not None

    def tool(self, name: str = "t", arguments: object = None) -> Ask:
        """Return what is known of a tool."""
        return self.known.find(REQUEST, name, lambda: arguments)

    def is_remembered(self, name: str = "t") -> bool:
        """Tell whether nothing has to be worked out anew."""
        return self.tool(name) is self.tool(name)


def where(folder: Path, *rules: Rule) -> Where:
    catalog, pins = ToolListings(), PinSet(folder / "turnlog.lock")
    book = ActiveRules(Rulebook(rules, {}, ()))
    identities = ServerIdentities(pins, lambda _: None)
    trusted = frozenset({"files"})
    known = ToolCache(catalog, pins, book, trusted, lambda name: name.strip("!"), identities)
    return Where(catalog, pins, book, known)


def test_a_tool_is_worked_out_once(tmp_path: Path) -> None:
    here = where(tmp_path)
    here.lists(READS)
    assert here.tool().effect is Effect.READ
    assert here.is_remembered()


def test_another_list_of_tools_counts_at_once(tmp_path: Path) -> None:
    here = where(tmp_path)
    effects = [here.tool().effect]
    for listed in (READS, WRITES):
        here.lists(listed)
        effects.append(here.tool().effect)
    here.catalog.forget(REQUEST.target, REQUEST.credential)
    effects.append(here.tool().effect)
    assert effects == [Effect.UNKNOWN, Effect.READ, Effect.WRITE, Effect.UNKNOWN]


def test_another_lock_counts_at_once(tmp_path: Path) -> None:
    here = where(tmp_path)
    here.lists(READS)
    found = [here.tool()]
    for digest in (READS_DIGEST, bytes(32)):
        here.pin(digest)
        found.append(here.tool())
    assert [tool.standing.provenance for tool in found] == [
        Provenance.UNVERIFIED,
        Provenance.PINNED,
        Provenance.MISMATCH,
    ]
    assert [tool.flags for tool in found] == [(), (), (Flag.CHANGED_DEFINITION,)]


def test_other_rules_count_at_once(tmp_path: Path) -> None:
    here = where(tmp_path)
    assert not here.tool().is_named
    here.rules.book = Rulebook((Rule(name="w", effect=Effect.WRITE),), {}, ())
    assert here.tool().effect is Effect.WRITE
    assert here.tool().is_named


def test_a_policy_that_depends_on_arguments_is_not_cached(tmp_path: Path) -> None:
    match = Match(tool=("t",), when=("$.args.force",))
    here = where(tmp_path, Rule(name="w", match=match, effect=Effect.WRITE))
    given: tuple[dict[str, int], ...] = ({"force": 1}, {}, {"force": 1})
    assert [here.tool("t", each).effect for each in given] == [
        Effect.WRITE,
        Effect.UNKNOWN,
        Effect.WRITE,
    ]
    assert not here.is_remembered("t")
    assert here.is_remembered("other")


def test_a_tool_is_shown_by_a_clean_and_moderate_name(tmp_path: Path) -> None:
    here = where(tmp_path)
    assert [here.tool(name).tool for name in ("t!", "!", "")] == ["t", "?", "?"]
    assert here.tool("x" * 300).tool == "x" * 256
    assert not here.is_remembered("x" * 300)


def test_no_more_tools_are_remembered_than_there_is_room_for(tmp_path: Path) -> None:
    here = where(tmp_path)
    first, *_, last = [here.tool(f"t{number}") for number in range(4097)]
    assert here.tool("t4096") is last
    assert here.tool("t0") is not first


class Compared(dict[tuple[str, str], bytes]):
    """Pins that count how often they are compared with others."""

    times = 0

    def __eq__(self, other: object) -> bool:
        """Count."""
        self.times += 1
        return super().__eq__(other)

    __hash__ = None


def test_pins_that_are_read_again_are_compared_once(tmp_path: Path) -> None:
    here = where(tmp_path)
    here.tool()
    here.pins.digests = again = Compared(here.pins.digests)
    assert here.is_remembered()
    assert again.times == 1
