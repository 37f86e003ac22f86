"""`turnlog mcp`: an agent's own session as tools, for a client that starts servers by a command."""

import os
import sys
from pathlib import Path

import click

from turnlog.store.base import StoreError


@click.command("mcp")
@click.option(
    "--session", metavar="S", required=True, help="An id, the beginning of one, or a name."
)
@click.option(
    "--config",
    metavar="FILE",
    help="The proxy's YAML file of settings, for `redact` and `data`.  [env: TURNLOG_CONFIG]",
)
@click.option("--data", metavar="DIR", help="The store's folder.  [default: ./turnlog-data]")
def command(session: str, config: str | None, data: str | None) -> None:
    """Serve the tools for one session over stdin and stdout (MCP): state, log, diff, dangling, note,
    recall.

    A session that nothing is recorded of yet is opened by its first note. Works beside running
    proxies; a proxy itself has the same tools at /turnlog/mcp. Secrets are cut from notes by the
    settings, so give those that the proxy has.
    """
    from turnlog.core.redact import Redactor
    from turnlog.serve.clock import Clock
    from turnlog.serve.layers import Flags, read_store_settings
    from turnlog.serve.own_stdio import StoreDesk, serve

    settings = read_store_settings(
        flags=Flags(config=config, data=data), environ=os.environ, folder=Path.cwd()
    )
    redact = settings.redact
    redactor = Redactor(redact.headers, redact.keys, redact.patterns)
    try:
        desk = StoreDesk(settings.data, session, Clock(), redactor, _warn)
    except ValueError as error:
        raise click.UsageError(f"--session: {error}") from None
    serve(desk, sys.stdin.buffer, sys.stdout.buffer, _warn)


def _warn(error: StoreError) -> None:
    click.echo(f"turnlog: {error}", err=True)
