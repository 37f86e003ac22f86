"""`turnlog backup`: copy a store while proxies write to it."""

from pathlib import Path

import click

from turnlog.cli.commands.read.verify import CheckFailed, check_store
from turnlog.cli.failures import FAILED, FINE, complain
from turnlog.cli.options import FOLDER, data_option, printout
from turnlog.cli.render import ProgressLine
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted, human_size
from turnlog.store.backup import back_up


@click.command("backup")
@click.argument("folder", metavar="DIR", type=FOLDER)
@data_option
def command(folder: Path, data: Path) -> int:
    """Copy the store to DIR, a new or empty folder, and verify the copy. Proxies may be running.

    The copy is a store: `turnlog log --data DIR` reads it, and a proxy can go on with it elsewhere. It
    holds the store's key and token, so protect it like the store. DIR is there once all of it is on
    disk. Exit code 1 when `turnlog verify` finds something in the copy, which is kept.
    """
    with ProgressLine() as progress:
        made = back_up(data, folder, progress.showing("copying"))
    found = list(check_store(folder))
    with printout() as write:
        write(f"copied {human_size(made.size)} to {escape_unprintable(str(folder))}")
        failed = [one for one in found if isinstance(one, CheckFailed)]
        checked = [one.line for one in found if not isinstance(one, CheckFailed)]
        wrong = [*made.left_out, *(one.text for one in failed)]
        wrong += [
            f"{one.session or 'the store'}: {one.detail}"
            for one in checked
            if not one.verdict.intact
        ]
        if not wrong:
            commits = sum(line.commits for line in checked)
            write(f"verified {counted(commits, 'commit')} of {counted(len(checked), 'session')}")
    for problem in wrong:
        complain(problem)
    return FAILED if wrong else FINE
