"""`turnlog demo`: a real agent and a real server with turnlog between them, then the log."""

import asyncio
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from turnlog.demo.play import DemoError, play


@click.command(name="demo")
@click.option(
    "--data",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to make and keep everything in.  [default: a temporary one]",
)
def command(folder: Path | None) -> None:
    """Watch an agent's calls go through turnlog, one of which kills the server midway."""
    if find_spec("mcp") is None:
        raise click.ClickException(
            "the demo's agent and server need the MCP SDK: pip install 'turnlog[demo]'"
        )
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="turnlog-demo-"))
    elif folder.exists():
        raise click.ClickException(f"{str(folder)!r} exists already: name a folder to make")
    folder.mkdir(parents=True, exist_ok=True)
    click.echo("what the agent saw:")
    try:
        asyncio.run(play(folder))
    except DemoError as error:
        raise click.ClickException(str(error)) from error
    data = str(folder / "data")
    click.echo(f"\nwhat turnlog kept (turnlog log --data {data}):")
    for arguments in (["log"], ["verify"]):
        subprocess.run(  # noqa: S603 - turnlog itself, with a folder that was made here
            [sys.executable, "-m", "turnlog", *arguments, "--data", data], check=True
        )
