"""`turnlog serve`: run the proxy."""

import os
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from pathlib import Path
from socket import gaierror
from typing import Any

import click

from turnlog.cli.failures import complain
from turnlog.cli.options import config_option, settings_data_option
from turnlog.packs.errors import SettingError
from turnlog.settings.http_proxies import proxy_warnings
from turnlog.settings.layers import Flags, config_file, misspelt_variable_warnings, read_settings
from turnlog.store.data_folder import reach
from turnlog.store.default_folder import default_place
from turnlog.store.startup_check import StartupCheck

_LISTEN_ERRORS = frozenset({EACCES, EADDRINUSE, EADDRNOTAVAIL})


@click.command("serve")
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="[NAME=]URL",
    help="A tool server; may be repeated. Without NAME it is called 'default'.",
)
@config_option()
@click.option(
    "--rules",
    multiple=True,
    metavar="PACK_OR_FILE",
    help="Rules for all servers; may be repeated. They come before those of --config.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:7411]")
@settings_data_option
@click.option(
    "--durability",
    metavar="balanced|strict|relaxed",
    help="Which calls wait for the disk: those that may change something, all, none.",
)
@click.option("--log-format", metavar="json|console", help="Format of the events on stdout.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
def command(**given: Any) -> int:
    """Run the proxy: forward tool calls to one or more tool servers, and record each of them.

    Settings come from defaults, then --config, then the environment (TURNLOG_LISTEN, ...), then
    these options; the later wins.
    """
    for warning in misspelt_variable_warnings(os.environ):
        complain(warning)
    flags = Flags(**given)
    settings = read_settings(flags)
    place = default_place(os.environ, Path.cwd())
    if place.hint and settings.data == place.path:
        complain(place.hint)
    ways = {name: (up.proxy, up.url.text) for name, up in settings.upstreams.items() if up.url}
    for warning in proxy_warnings(ways, os.environ):
        complain(warning)
    # Check the folder first: errors about it would look like errors of the lock in it.
    reach(settings.data)
    look = StartupCheck(settings.data)
    # The modules load while the store is checked.
    from turnlog.app.serve import run
    from turnlog.engine.tools.pin_set import PinSet
    from turnlog.packs.lock import lock_file

    pins = PinSet(lock_file(config_file(flags), settings.data), settings.data)
    if not look.result():
        complain(
            "the check of the store did not end in time, run `turnlog verify` when the disk is idle"
        )
    try:
        return run(settings, pins)
    except OSError as error:
        if error.errno not in _LISTEN_ERRORS and not isinstance(error, gaierror):
            raise
        reason = (error.strerror or str(error)).rpartition(": ")[2].lower()
        message = f"cannot listen on {str(settings.listen)!r} ({reason}), name another address"
        raise SettingError("--listen", message) from error
