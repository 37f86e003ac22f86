"""`turnlog mcp`: an MCP server over stdio with tools for one session."""

import sys

import click

from turnlog.cli.failures import complain
from turnlog.cli.options import WrittenStore, writing_options


@click.command("mcp")
@click.option(
    "--session", metavar="S", required=True, help="An id, the beginning of one, or a name."
)
@writing_options
def command(session: str, target: WrittenStore) -> None:
    """Serve the tools for one session over stdin and stdout (MCP): state, log, diff, dangling, note,
    recall, pause, resume, effect.

    A new session is opened by its first note. Works beside running proxies; a proxy has the same
    tools at /turnlog/mcp. Notes are redacted as the settings say, so use those of the proxy.
    """
    from turnlog.api.agent_mcp.stdio import StoredSession, serve
    from turnlog.observe.clock import Clock

    try:
        stored = StoredSession(target.folder, session, Clock(), target.redactor, complain)
    except ValueError as error:
        raise click.UsageError(f"--session: {error}") from None
    serve(stored, sys.stdin.buffer, sys.stdout.buffer, complain)
