"""`turnlog mcp`: an agent's own session as tools, for a client that starts servers by a command."""

import sys
from pathlib import Path

import click

from turnlog.store.base import StoreError

from .options import data_option


@click.command("mcp")
@click.option(
    "--session", metavar="S", required=True, help="An id, the beginning of one, or a name."
)
@data_option
def command(session: str, data: str) -> None:
    """Serve the tools for one session over stdin and stdout (MCP): state, log, diff, dangling, note,
    recall.

    A session that nothing is recorded of yet is opened by its first note. Works beside running
    proxies; a proxy itself has the same tools at /turnlog/mcp.
    """
    from turnlog.serve.clock import Clock
    from turnlog.serve.own_stdio import StoreDesk, serve

    try:
        desk = StoreDesk(Path(data).expanduser(), session, Clock(), _warn)
    except ValueError as error:
        raise click.UsageError(f"--session: {error}") from None
    serve(desk, sys.stdin.buffer, sys.stdout.buffer, _warn)


def _warn(error: StoreError) -> None:
    click.echo(f"turnlog: {error}", err=True)
