"""`turnlog trust`: compare the tools that servers list with turnlog.lock, and pin them."""

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from turnlog.cli.failures import FAILED, FINE, complain
from turnlog.cli.options import config_option, data_option, json_option, printout
from turnlog.cli.render import Style, json_line, painted
from turnlog.core.text.terminal import escape_unprintable
from turnlog.packs.lock import (
    LockFile,
    is_beside_configuration,
    join_lock_name,
    lock_file,
    read_lock,
    read_lock_note,
    server_of,
    write_lock,
)
from turnlog.sessions.trust import (
    ChangeKind,
    PinDifference,
    ServerDifference,
    ShownTools,
    ToolSelection,
    count_by_change,
    pin_differences,
    server_differences,
    shown_tools,
    with_pins,
)
from turnlog.settings.layers import Flags, config_file, read_store_settings

_STYLES = {"+": Style.GOOD, "-": Style.BAD, "@": Style.FAINT}


@click.command("trust")
@click.argument("what", metavar="[SERVER[/TOOL]]", required=False)
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if something differs.")
@click.option(
    "--yes", is_flag=True, help="Pin without asking; print the diff of changed tools only."
)
@config_option("The configuration of the proxy; the lock is beside it.")
@data_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, what: str | None, check: bool, yes: bool, **given: Any) -> int:
    """Show how tools and servers differ from turnlog.lock, then pin them there.

    Compares the tools that each server listed when an agent last listed them through turnlog, and
    what was seen of the server itself: its target, name and version, a command's program, and with
    pin_tls its TLS key. turnlog itself queries no server. Each recorded call says whether its tool
    and its server were as pinned.
    turnlog.lock is beside the configuration file, else in the data folder; without --config it is
    the lock of the proxy that was started last on the data folder. If the configuration has
    upstreams, only these and servers already pinned are compared, unless SERVER is given.

    \b
      turnlog trust files              # look, and answer y to pin
      turnlog trust --check            # in CI: exit code 0 if all shown tools are as pinned
    """
    if check and yes:
        raise click.UsageError("--check writes nothing and --yes writes, give one")
    # An option's default must not win over the `data` of the configuration.
    is_given = ctx.get_parameter_source("data") is ParameterSource.COMMANDLINE
    flags = Flags(config=given["config"], data=str(given["data"]) if is_given else None)
    settings, file = read_store_settings(flags), config_file(flags)
    folder = settings.data
    path = (read_lock_note(folder) if file is None else None) or lock_file(file, folder)
    lock = read_lock(path)
    wanted = _selection(what, settings.upstreams if file else {}, lock)
    offer = shown_tools(folder, wanted)
    _check_name(what, wanted, offer, lock)
    _warn_of_another(path, folder)
    _name_left_out(folder, wanted)
    beside = is_beside_configuration(path, folder)
    servers = server_differences(lock, offer, is_beside_configuration=beside)
    found = pin_differences(lock, offer, wanted)
    with printout() as write:
        text = chain(_text(found, brief=yes), _server_text(servers, brief=yes))
        for line in map(json_line, (*found, *servers)) if given["as_json"] else text:
            write(line)
    if check:
        return _checked(servers, found, offer, path)
    if not servers and not found:
        complain(_nothing(offer, path))
    elif _confirmed(_counts(servers, found), path, yes=yes):
        write_lock(path, with_pins(lock, offer, found))
        complain(f"{_counts(servers, found)}: wrote {str(path)!r}")
    else:
        complain("nothing was pinned")
    return FINE


def _warn_of_another(path: Path, folder: Path) -> None:
    """Warn when the given configuration has another lock than the proxy of this folder."""
    its = read_lock_note(folder)
    if its is None or its.resolve() == path.resolve():
        return
    complain(
        f"this is {str(path)!r}, but the proxy that was started last on {str(folder)!r} reads "
        f"{str(its)!r}; leave out --config to use that one"
    )


def _name_left_out(folder: Path, wanted: ToolSelection) -> None:
    """Name the servers that are left out because the configuration does not have them."""
    if wanted.among is None:
        return
    shown = {server_of(server) for server, _ in shown_tools(folder, ToolSelection()).shown}
    others = sorted(shown - wanted.among)
    if others:
        names = ", ".join(map(repr, others))
        complain(
            f"left out, for the configuration has no such upstream: {names}; name one to look at it"
        )


def _selection(what: str | None, configured: Collection[str], lock: LockFile) -> ToolSelection:
    """Return the named tools, else those of servers that are configured or already pinned."""
    if what is None:
        known = frozenset((*configured, *map(server_of, lock.servers)))
        return ToolSelection(among=known if configured else None)
    server, slash, tool = what.partition("/")
    return ToolSelection(server, tool if slash else None)


def _check_name(what: str | None, wanted: ToolSelection, offer: ShownTools, lock: LockFile) -> None:
    """Refuse an unknown name: comparing nothing must not look like success."""
    pins = [(server, tool) for server, tools in lock.servers.items() for tool in tools]
    known = any(wanted.covers(*place) for place in (*offer.shown, *pins))
    if what is None or known or offer.identities:
        return
    raise click.UsageError(
        f"{what!r} was neither shown nor pinned, let an agent list the tools through turnlog"
    )


def _server_text(found: Sequence[ServerDifference], *, brief: bool) -> Iterator[str]:
    """Yield how the identities of servers differ; with `brief`, the parts of changed servers only."""
    for one in found:
        parts = ", ".join(one.parts)
        yield f"{escape_unprintable(one.server)}  server {one.change}: {parts}"
        yield from _diff(one, brief=brief)


def _text(found: Sequence[PinDifference], *, brief: bool) -> Iterator[str]:
    """Yield the differences; with `brief`, diffs of changed tools only."""
    places = {(one.server, one.target) for one in found}
    several = [name for name, many in Counter(server for server, _ in places).items() if many > 1]
    for one in found:
        parts = f": {', '.join(one.parts)}" if one.parts else ""
        server = join_lock_name(one.server, one.target) if one.server in several else one.server
        yield f"{escape_unprintable(server)}/{escape_unprintable(one.tool)}  {one.change}{parts}"
        yield from _diff(one, brief=brief)


def _diff(one: PinDifference | ServerDifference, *, brief: bool) -> list[str]:
    if brief and one.change is not ChangeKind.CHANGED:
        return []
    lines = [painted(escape_unprintable(line), _STYLES.get(line[:1])) for line in one.diff]
    return [*lines, ""]


def _checked(
    servers: Sequence[ServerDifference],
    found: Sequence[PinDifference],
    offer: ShownTools,
    path: Path,
) -> int:
    if not offer.shown and not offer.identities:
        complain(_nothing(offer, path))
        return FAILED
    # A tool that is gone can do no harm, and locks of turnlog up to 0.2 have no servers.
    differs = any(one.change is not ChangeKind.GONE for one in found) or any(
        one.change is ChangeKind.CHANGED for one in servers
    )
    counts = _counts(servers, found)
    complain(f"{counts} against {str(path)!r}" if counts else _nothing(offer, path))
    return FAILED if differs else FINE


def _nothing(offer: ShownTools, path: Path) -> str:
    if not offer.shown and offer.identities:
        return f"the servers are as pinned in {str(path)!r}, and no tools were shown"
    if not offer.shown:
        return "no tools were shown yet, let an agent list them through turnlog"
    count = len(offer.shown)
    tools = "the only tool is" if count == 1 else f"all {count} tools are"
    return f"{tools} as pinned in {str(path)!r}"


def _counts(servers: Sequence[ServerDifference], found: Sequence[PinDifference]) -> str:
    of_tools = [f"{number} {kind}" for kind, number in count_by_change(found).items()]
    of_servers = [
        f"{number} {kind} server{'s' * (number > 1)}"
        for kind, number in count_by_change(servers).items()
    ]
    return ", ".join(of_tools + of_servers)


def _confirmed(counts: str, path: Path, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(
            "stdin is not a terminal, so nobody can be asked: read the diff and give --yes to pin"
        )
    question = f"turnlog: {counts}: pin this in {str(path)!r}?"
    return click.confirm(question, default=False, err=True)
