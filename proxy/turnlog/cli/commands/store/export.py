"""`turnlog export`: attempts as JSON Lines or Parquet."""

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Protocol

import click
from msgspec import structs

from turnlog.cli.commands.session.resume import copy_session, new_file
from turnlog.cli.filters import query_of, query_options, refuse_range
from turnlog.cli.options import data_option, open_view, warn_of_damage, word_of
from turnlog.cli.render import ProgressLine, json_line
from turnlog.core.text.units import counted
from turnlog.host import whole_file
from turnlog.sessions.log import Query, find_session, only_session
from turnlog.sessions.pages import LogPage, export_pages
from turnlog.sessions.rows import Row
from turnlog.store.lmdb import LmdbReader


class ExportFormat(StrEnum):
    """The formats of an export."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    BUNDLE = "bundle"
    """One session whole, for `turnlog import`."""


class _Writer(Protocol):
    def write(self, rows: list[Row]) -> None: ...

    def close(self) -> None: ...


@click.command("export")
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@query_options
@click.option("--payloads", is_flag=True, help="With whole inputs and outputs, as recorded.")
@click.option(
    "--format",
    "form",
    metavar="|".join(ExportFormat),
    type=word_of("format", ExportFormat),
    default=ExportFormat.JSONL,
    help="JSON Lines, as `turnlog log --json`, Parquet, or a bundle.  [default: jsonl]",
)
@click.option("--output", "-o", metavar="FILE", help="Write to a file, not to stdout.")
@data_option
def command(
    sessions: tuple[str, ...],
    payloads: bool,
    form: ExportFormat,
    output: str | None,
    data: Path,
    **wanted: Any,
) -> None:
    """Write attempts, oldest first, to stdout or a file: all of them, or those of each SESSION.

    The options choose attempts as those of `turnlog log` do, for each SESSION by itself. Proxies
    may be running; attempts that begin meanwhile are left out. A FILE is there once it is whole.
    With redaction as configured, an export holds what the log holds: keep it like the store.

    \b
    turnlog export --since 7d --error timeout > timeouts.jsonl
    turnlog export --format parquet -o calls.parquet

    A bundle is a copy of one SESSION in FILE, as `turnlog resume --bundle --copy` writes it.
    """
    if form is ExportFormat.BUNDLE:
        _export_bundle(sessions, output, data, wanted)
        return
    asked = query_of(wanted)
    is_terminal = output is None and sys.stdout.isatty()
    if form is ExportFormat.PARQUET and is_terminal:
        raise click.UsageError(
            "Parquet is binary, no terminal can show it: name a file with --output, or redirect stdout"
        )
    left_out = 0
    with LmdbReader.open(data) as reader, ProgressLine(is_shown=not is_terminal) as progress:
        queries = _queries(reader, sessions, wanted, asked)
        with _sink(output) as sink:
            writer = _writer(form, sink)
            for page in _pages(reader, queries, progress, payloads=payloads):
                writer.write(page.items)
                left_out += page.left_out
            writer.close()
    warn_of_damage(left_out)


def _export_bundle(
    sessions: tuple[str, ...], output: str | None, data: Path, wanted: dict[str, Any]
) -> None:
    if len(sessions) != 1 or output is None or any(wanted.values()):
        raise click.UsageError(
            "a bundle holds one session whole: give one SESSION and --output, and no filter"
        )
    file = new_file(output)
    with open_view(data) as view:
        session = find_session(view, sessions[0])
    copy_session(data, session, file)


def _queries(
    reader: LmdbReader, names: tuple[str, ...], wanted: dict[str, Any], asked: Query
) -> list[Query]:
    """Return one query for each session that is named, else one for all. Raises `NotFoundError`."""
    with reader.view() as view:
        found: list[bytes | None] = [find_session(view, name) for name in names]
        found = found or [only_session(view)]
    if found == [None]:
        refuse_range(wanted)
    return [structs.replace(asked, session=session) for session in dict.fromkeys(found)]


def _pages(
    reader: LmdbReader, queries: list[Query], progress: ProgressLine, *, payloads: bool
) -> Iterator[LogPage]:
    rows = 0
    for query in queries:
        for page in export_pages(reader.view, query, payloads=payloads):
            yield page
            rows += len(page.items)
            progress.show(f"exported {counted(rows, 'attempt')}")


@contextmanager
def _sink(output: str | None) -> Generator[IO[bytes]]:
    if output is None:
        yield sys.stdout.buffer
        return
    file = Path(output)
    if not file.parent.is_dir() or file.is_dir():
        raise click.UsageError(f"{output!r} cannot be written, name a file in a folder that exists")
    if file.is_symlink() or (file.exists() and not file.is_file()):  # /dev/stdout, a named pipe
        with file.open("wb") as sink:
            yield sink
        return
    with whole_file(file, replace=True) as sink:
        yield sink


def _writer(form: ExportFormat, sink: IO[bytes]) -> _Writer:
    if form is ExportFormat.JSONL:
        return _Lines(sink)
    try:
        from turnlog.sessions.transfer.parquet import ParquetWriter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise click.UsageError(
            "Parquet needs pyarrow, install it with `pip install 'turnlog[parquet]'`"
        ) from error
    return ParquetWriter(sink)


class _Lines:
    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink

    def write(self, rows: list[Row]) -> None:
        self._sink.writelines(f"{json_line(row)}\n".encode() for row in rows)

    def close(self) -> None:
        self._sink.flush()
