"""`turnlog import`: import a session that another store has packed into a bundle."""

from pathlib import Path

import click

from turnlog.cli.failures import complain
from turnlog.cli.options import FOLDER, data_option, json_option, printout, write_store
from turnlog.cli.render import ProgressLine, json_line
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.observe.clock import Clock
from turnlog.sessions.transfer.bundle import check_bundle
from turnlog.sessions.transfer.importing import Imported, Relation, import_bundle


@click.command("import")
@click.argument("file", type=FOLDER)
@click.option("--as-fork", is_flag=True, help="As a session of its own, with another id.")
@data_option
@json_option
def command(file: Path, as_fork: bool, data: Path, as_json: bool) -> None:
    """Import the session in FILE, a bundle of `turnlog resume --bundle`.

    All of FILE is checked before anything is written, and all of it is imported or nothing. What the
    session did is not done again: its agent goes on under the same name. Calls that were open get the
    outcome `outcome_unknown`. A FILE whose commits are all here changes nothing, one that goes further
    is appended. Where the session went another way here, nothing is imported; --as-fork imports FILE
    beside it. Proxies may be running, and wait while the commits are written.
    """
    with ProgressLine() as progress, printout() as write:
        bundle = check_bundle(file, progress.showing("checking"))
        show = progress.showing("writing")
        imported = write_store(
            data, lambda store: import_bundle(store, bundle, Clock(), show, as_fork=as_fork)
        )
        for line in [json_line(imported)] if as_json else _text(imported):
            write(line)
    if imported.names_taken:
        names = ", ".join(imported.names_taken)
        complain(f"another session of this store keeps the name: {names}")


def _text(imported: Imported) -> list[str]:
    session = f"session {imported.session}"
    if imported.relation is Relation.SAME:
        return [f"{session}: all of it is here already, its newest commit is {imported.seq}"]
    counts = [counted(imported.commits, "commit"), counted(imported.payloads, "payload")]
    lines = [f"{session}: imported {' and '.join(counts)}, its newest commit is {imported.seq}"]
    if imported.origin:
        lines.append(f"a fork of session {imported.origin}")
    if imported.closed:
        lines.append(f"{counted(imported.closed, 'open attempt')} became outcome_unknown")
    return [escape_unprintable(line) for line in lines]
