import asyncio
from pathlib import Path

from msgspec import Raw

from kit.attempts import Collected, Time
from kit.proxy import until
from turnlog.core.pins import ServerIdentity
from turnlog.engine.tools.definition_writer import DefinitionWriter
from turnlog.engine.tools.pin_set import PinSet
from turnlog.engine.tools.server_identities import ServerIdentities
from turnlog.observe.events import DefinitionsFailed, ServerChanged, ToolChanged
from turnlog.redaction.redact import Redactor
from turnlog.settings.upstream_url import UpstreamUrl, mask_of
from turnlog.store import definitions
from turnlog.wire.tools_list import ToolPage, read_tools_list


def page(text: str = "", *, count: int = 1) -> ToolPage:
    tools = ",".join(f'{{"name":"t{n}","description":"{text}"}}' for n in range(count))
    return read_tools_list(Raw(f'{{"tools":[{tools}]}}'.encode()))


def keeper(data: Path, log: Collected, work: asyncio.TaskGroup) -> DefinitionWriter:
    pins = PinSet(data / "turnlog.lock")
    return DefinitionWriter(data, Redactor(), str, pins, Time().clock(), log, log.fault, work)


async def test_lists_are_written_in_the_order_they_came(tmp_path: Path) -> None:
    log = Collected()
    async with asyncio.TaskGroup() as work:
        one = keeper(tmp_path, log, work)
        for text in ("a", "b", "c"):
            one.note("s@here", "me", page(text), frozenset({"t0"}))
    (shown,) = definitions.shown(tmp_path)
    assert shown.digest == page("c").definitions["t0"].digest
    assert [event.parts for event in log.of(ToolChanged)] == [("description",)] * 2


async def test_a_definition_is_kept_without_the_values_in_the_url_of_its_server(
    tmp_path: Path,
) -> None:
    log, url = Collected(), "http://127.0.0.1/hidden-value/mcp"
    begin = url.index("hidden")
    mask = mask_of(UpstreamUrl(url, ((begin, begin + len("hidden-value")),)))
    assert mask is not None
    pins, clock = PinSet(tmp_path / "turnlog.lock"), Time().clock()
    async with asyncio.TaskGroup() as work:
        one = DefinitionWriter(
            tmp_path, Redactor(), str, pins, clock, log, log.fault, work, {"s": mask}
        )
        one.note("s@here", "me", page(f"at {url}"), frozenset({"t0"}))
    assert definitions.shown(tmp_path)
    written = content_of(tmp_path)
    assert b"127.0.0.1" in written
    assert b"hidden-value" not in written


def content_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_only_some_of_very_many_changes_are_named(tmp_path: Path) -> None:
    log = Collected()
    async with asyncio.TaskGroup() as work:
        one = keeper(tmp_path, log, work)
        one.note("s@here", "me", page("a", count=50), None)
        one.note("s@here", "me", page("b", count=50), None)
    assert len(log.of(ToolChanged)) == 20


OLD = ServerIdentity(target="http://here", version="1.0", tls_key="sha256:0")
NEW = ServerIdentity(target="http://here", tls_key="sha256:1")


async def test_a_key_that_changes_at_all_places_of_a_server_is_one_change(tmp_path: Path) -> None:
    log = Collected()
    async with asyncio.TaskGroup() as work:
        one = keeper(tmp_path, log, work)
        one.note_servers({"s@here": OLD, "s@there": OLD, "t@here": OLD})
        one.note_servers({"s@here": NEW, "s@there": NEW, "t@here": NEW})
    assert [event.server for event in log.of(ServerChanged)] == ["s", "t"]


async def test_what_a_process_has_not_seen_again_undoes_no_news_of_another(tmp_path: Path) -> None:
    log, place = Collected(), ("http://here", "/mcp", "")
    pins = PinSet(tmp_path / "turnlog.lock")
    async with asyncio.TaskGroup() as work:
        writers = [keeper(tmp_path, log, work) for _ in range(2)]
        one, other = (ServerIdentities(pins, writer.note_servers) for writer in writers)
        one.on_server_info("s", place, "bank", "1.0")
        await written(tmp_path, version="1.0")
        other.on_server_info("s", place, "bank", "1.1")
        await written(tmp_path, version="1.1")
        one.on_seen("s", ServerIdentity(tls_key="sha256:1"))
    assert [(event.before, event.now) for event in log.of(ServerChanged)] == [(("1.0",), ("1.1",))]
    (shown,) = definitions.servers(tmp_path).values()
    assert (shown.version, shown.tls_key) == ("1.1", "sha256:1")


async def written(data: Path, **parts: str) -> None:
    """Wait until these parts of a server were written down."""

    def found() -> ServerIdentity | None:
        shown = definitions.servers(data).values()
        return next((one for one in shown if parts.items() <= one.parts.items()), None)

    await until(found, f"{parts} are written down")


async def test_more_lists_than_can_be_written_are_given_up_and_said(tmp_path: Path) -> None:
    log = Collected()
    async with asyncio.TaskGroup() as work:
        one = keeper(tmp_path, log, work)
        for n in range(40):
            one.note("s@here", "me", page(str(n)), None)
    assert len(log.of(DefinitionsFailed)) == 8
    assert len(definitions.shown(tmp_path)) == 1


async def test_a_disk_that_takes_nothing_is_said_and_harms_nobody(tmp_path: Path) -> None:
    log = Collected()
    (tmp_path / "definitions").write_text("in the way")
    async with asyncio.TaskGroup() as work:
        one = keeper(tmp_path, log, work)
        one.note("s@here", "me", page(), None)
        one.note("s@here", "me", page(), None)
    assert len(log.of(DefinitionsFailed)) == 2
