"""`turnlog resume`: what is needed to go on with a session, here or elsewhere."""

from pathlib import Path

import click

from turnlog.cli.attempts import COLUMNS, cells
from turnlog.cli.commands.read.state import branch_lines, described
from turnlog.cli.failures import complain
from turnlog.cli.options import (
    SEQ,
    WrittenStore,
    fence_option,
    json_option,
    open_view,
    printout,
    why_option,
    write_store,
    writing_options,
)
from turnlog.cli.render import ProgressLine, Style, json_line, painted, table
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.host import whole_file
from turnlog.observe.clock import Clock
from turnlog.sessions.control.writer import ControlWriter
from turnlog.sessions.log import find_session
from turnlog.sessions.rows import Row
from turnlog.sessions.state.state_at import saved_states
from turnlog.sessions.transfer.resume import (
    LAST,
    MOVED,
    BundleSource,
    PackedSession,
    Resumption,
    move_session,
    pack_session,
    resumption,
)
from turnlog.store.data_folder import Secrets, read_key
from turnlog.store.lmdb import LmdbStore


@click.command("resume")
@click.argument("session")
@click.option(
    "--last",
    type=SEQ,
    default=LAST,
    metavar="N",
    help=f"The newest N attempts.  [default: {LAST}]",
)
@click.option(
    "--bundle", metavar="FILE", help="Write the session to a new file, for `turnlog import`."
)
@click.option("--copy", is_flag=True, help="With --bundle: do not pause the session here.")
@why_option
@fence_option
@writing_options
@json_option
def command(
    session: str,
    last: int,
    bundle: str | None,
    copy: bool,
    why: str,
    fence: int | None,
    target: WrittenStore,
    as_json: bool,
) -> None:
    """Show what a runtime needs to go on with a session: state, open and unknown calls, the last ones.

    SESSION is an id, the beginning of one, or a name. With --bundle the whole session (log, payloads,
    keys, names) goes into FILE, to go on with in another store: `turnlog import FILE`. It is paused
    here, so that it does not go on in both; with --copy it is not. FILE holds the secret of the
    session's digests, so protect it like the store.

    \b
    turnlog resume work --json | jq .unknown
    turnlog resume work --bundle work.bundle
    """
    if bundle is None and (copy or why or fence is not None):
        raise click.UsageError("--copy, --why and --fence are for --bundle")
    file = None if bundle is None else new_file(bundle)
    with printout() as write:
        with open_view(target.folder) as view:
            found = find_session(view, session)
            if file is None:
                shown = resumption(view, saved_states(target.folder), found, last=last)
                for line in [json_line(shown)] if as_json else _text(shown):
                    write(line)
                return
        if copy:
            packed = copy_session(target.folder, found, file)
        else:
            packed = _move(target, found, file, f"{MOVED}: {why}" if why else MOVED, fence)
        write(json_line(packed) if as_json else _packed(packed, file))
    _warn_of_running(packed.in_flight)


def new_file(name: str) -> Path:
    """Return the path of a file that is to be made. Raises `click.UsageError`."""
    file = Path(name)
    if not file.parent.is_dir():
        raise click.UsageError(
            f"the folder {str(file.parent)!r} is not there, make it or name another"
        )
    if file.exists():
        raise click.UsageError(f"{name!r} is there already, name a new file")
    return file


def _warn_of_running(in_flight: int) -> None:
    if in_flight:
        calls = counted(in_flight, "call")
        complain(f"{calls} in flight: the bundle does not have the outcome, the import closes it")


def copy_session(data: Path, session: bytes, file: Path) -> PackedSession:
    """Write a session as a bundle to a new file; it goes on as it is. Raises `StoreError`, `OSError`."""

    async def pack(store: LmdbStore) -> PackedSession:
        with (
            ProgressLine() as progress,
            whole_file(file, replace=False) as sink,
            store.view() as view,
        ):
            return pack_session(view, _source(data, session), sink, progress.showing("packed"))

    # Opening closes the open attempts of dead processes: else each of the two stores would do that.
    return write_store(data, pack)


def _move(
    target: WrittenStore, session: bytes, file: Path, why: str, fence: int | None
) -> PackedSession:
    async def move(store: LmdbStore) -> PackedSession:
        with ProgressLine() as progress, whole_file(file, replace=False) as sink:
            controls = ControlWriter(store, target.redactor, Clock())
            source, show = _source(target.folder, session), progress.showing("packed")
            return await move_session(store, source, sink, controls, why, show, fence)

    return target.write(move)


def _source(data: Path, session: bytes) -> BundleSource:
    secrets = Secrets(data, read_key(data))
    return BundleSource(
        session=session,
        secret=secrets.read().get(session, secrets.own),
        saved=saved_states(data),
        clock=Clock(),
    )


def _packed(packed: PackedSession, file: Path) -> str:
    kept = "stays as it is" if packed.fence is None else f"is paused by commit {packed.fence}"
    return escape_unprintable(
        f"session {packed.session} up to commit {packed.seq} is in {file}, here it {kept}"
    )


def _text(shown: Resumption) -> list[str]:
    at = shown.state.at
    lines = [f"{shown.session} is {shown.stage}, newest commit {at.seq}, turn {at.turn}"]
    lines += [f"state {shown.state.state_hash}", *branch_lines(shown.state)]
    for field, entries in shown.state.state.items():
        if entries:
            lines.append(painted(field, Style.FAINT))
            lines += [
                escape_unprintable(f"  {key}  {described(value)}") for key, value in entries.items()
            ]
    lines += _listed("open calls", shown.pending)
    lines += _listed("calls whose outcome is unknown", shown.unknown)
    lines += _listed("calls without an answer", [one.row for one in shown.dangling])
    return lines + _listed("last attempts", shown.last)


def _listed(head: str, rows: list[Row]) -> list[str]:
    if not rows:
        return []
    shown = table(COLUMNS[1:], (cells(row)[1:] for row in rows))
    return [painted(head, Style.FAINT), *shown]
