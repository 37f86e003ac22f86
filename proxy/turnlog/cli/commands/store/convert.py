"""`turnlog convert`: convert a store of an earlier release to the present format."""

from pathlib import Path

import click

from turnlog.cli.options import data_option, printout
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.store.convert import convert
from turnlog.store.data_folder import FORMAT


@click.command("convert")
@data_option
def command(data: Path) -> None:
    """Convert a store of turnlog 0.2 to the present format.

    First stop every proxy and wrap that uses the store: a store in use is not converted. The log is
    copied, so the disk needs space for a second one; the old log is kept beside the new one. After
    a crash of the machine, newest calls that exist only in the old log's spare copies are written
    into the new one. turnlog 0.2 cannot open the store afterwards.
    """
    converted = convert(data)
    with printout() as write:
        if converted is None:
            write(f"the store {escape_unprintable(str(data))} has format {FORMAT} already")
            return
        write(f"converted {counted(converted.commits, 'commit')} to format {FORMAT}")
        if converted.replayed:
            write(
                f"recovered {counted(converted.replayed, 'commit')} that a crash of the machine had undone"
            )
        write(
            f"kept the log as it was in {escape_unprintable(str(converted.kept))}; remove it once all is well"
        )
