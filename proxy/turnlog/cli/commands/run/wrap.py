"""`turnlog wrap`: a recording proxy between a client and a stdio server."""

from pathlib import Path
from typing import Any

import click

from turnlog.cli.failures import complain
from turnlog.cli.options import Parsed, config_option, settings_data_option
from turnlog.core.identity import session_name
from turnlog.engine.tools.pin_set import PinSet
from turnlog.packs.lock import lock_file
from turnlog.settings.layers import Flags, config_file, read_wrap_settings
from turnlog.settings.model import Settings
from turnlog.settings.values import name_of_command, upstream_name
from turnlog.store.data_folder import reach
from turnlog.transport.child_process import Child, exit_as, exit_code, start


@click.command(
    "wrap",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@config_option()
@click.option(
    "--rules",
    multiple=True,
    metavar="PACK_OR_FILE",
    help="Rules for this server; may be repeated. They come before those of --config.",
)
@settings_data_option
@click.option(
    "--session",
    metavar="NAME",
    type=Parsed("session", session_name),
    help="The session that all calls belong to.",
)
@click.option(
    "--name",
    metavar="NAME",
    type=Parsed("name", upstream_name),
    help="Name of the server.  [default: from the command]",
)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND [ARGS]...")
def command(
    command: tuple[str, ...], *, session: str | None, name: str | None, **given: Any
) -> int:
    """Run a tool server that speaks over stdin and stdout, and record each of its calls.

    Put it before the command in the client's configuration. Messages pass unchanged. Once the
    command runs, turnlog writes nothing to stdout or stderr: its log is DATA/logs/wrap.jsonl.
    """
    server, flags = name or name_of_command(command), Flags(**given)
    settings = read_wrap_settings(flags, server)
    reach(settings.data)
    pins = PinSet(lock_file(config_file(flags), settings.data), settings.data)
    # The command starts while the rest of turnlog loads.
    started: Child | OSError
    try:
        started = start(command)
    except OSError as error:
        started = error
    try:
        code = _relay(started, settings, pins, command, server=server, session=session)
    finally:
        if isinstance(started, Child):
            started.end()
    return exit_as(code)


def _relay(
    started: Child | OSError,
    settings: Settings,
    pins: PinSet,
    command: tuple[str, ...],
    *,
    server: str,
    session: str | None,
) -> int:
    """Relay until the command ends; return its exit code, negative for a signal."""
    from turnlog.store.startup_check import StartupCheck

    look = StartupCheck(settings.data)
    # The modules load while the store is checked.
    import asyncio

    from turnlog.app.wrap import logging_to, run
    from turnlog.observe.events import ProcessFailed
    from turnlog.transport.routes import place_of_command

    with logging_to(settings) as log:
        if isinstance(started, OSError):
            log.emit(ProcessFailed(server=server, reason=started.strerror or str(started)))
            complain(_not_started(command[0], started))
            return exit_code(started)
        look.result()
        place = place_of_command(command, Path.cwd())
        relaying = run(
            started, settings, log, pins, server=server, place=place, session=session or ""
        )
        return asyncio.run(relaying)


def _not_started(program: str, failed: OSError) -> str:
    """Return why a command did not start, for stderr."""
    reason = (failed.strerror or str(failed)).lower()
    if not isinstance(failed, FileNotFoundError):
        advice = "name a file that may be executed"
    elif "/" in program:
        advice = "name a file that is there, as is what its first line (`#!`) names"
    else:
        advice = "install it, or give its whole path: PATH may be another one here"
    return f"cannot start {program!r} ({reason}), {advice}"
