"""`turnlog verify`: check the hash chains of sessions and the files of the store."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import click
import msgspec
from msgspec import Struct

from turnlog.cli.attempts import session_id_cell
from turnlog.cli.failures import FAILED, FAILURES, FINE, NO_STORE, complain, describe
from turnlog.cli.options import data_option, json_option, printout
from turnlog.cli.render import Cell, Column, ProgressLine, Style, json_line, table
from turnlog.core import ids
from turnlog.core.text.units import counted
from turnlog.sessions.log import find_session
from turnlog.sessions.verify import Anchor, ChainVerdict, Finding, verify
from turnlog.store.base import Flaw, FlawKind, ProcessIdTaken
from turnlog.store.bounded_process import Send, Unfinished, Worker, WorkerFailed, seconds_for
from turnlog.store.lmdb import LmdbReader, rebuild_indexes
from turnlog.store.read.view import View

_FLAW_TEXTS = {
    FlawKind.UNREADABLE: "cannot be read",
    FlawKind.ALTERED: "cannot be what was written there",
    FlawKind.MISSING: "was there once",
}
_COLUMNS = (
    Column("SESSION", whole=True),
    Column("VERDICT", whole=True),
    Column("COMMITS", whole=True),
    Column("BAD SEQ", whole=True),
    Column("DETAIL"),
)


class _AnchorLine(Struct, frozen=True):
    session: str
    seq: int
    hash: str


class CheckedLine(Struct, frozen=True, tag=True):
    line: Finding
    cells: list[Cell]
    """The same as cells of the table."""


_NO_ANCHORS: Final[Mapping[bytes, list[Anchor]]] = {}
_PATIENCE: Final = 4
"""How many times the allowed processor time to wait, on a busy machine."""


class CheckFailed(Struct, frozen=True, tag=True):
    """The check could not be done."""

    text: str
    code: int
    lock: str = ""
    """The lock file, when another process has the id of the checking one."""


@click.command("verify")
@click.argument("session", required=False)
@click.option(
    "--anchor",
    type=click.File("rb"),
    metavar="FILE",
    help="Lines of `turnlog sessions --json` that were kept elsewhere.",
)
@click.option(
    "--rebuild", is_flag=True, help="First rebuild the indexes from the log; writers wait."
)
@data_option
@json_option
def command(
    session: str | None, anchor: BinaryIO | None, rebuild: bool, data: Path, as_json: bool
) -> int:
    """Check that the log was not changed: all sessions, or SESSION.

    Finds any change that does not also rewrite every later commit of the session and the digests
    of the log; with --anchor it finds those as well. Files, indexes and stored payloads are checked
    too. Exit code 1 when something was found.
    """
    anchors = _read_anchors(anchor)
    found: list[CheckedLine] = []
    commits = 0
    with printout() as write, ProgressLine() as progress:
        for message in check_store(data, session, anchors, rebuild=rebuild):
            if isinstance(message, CheckFailed) and message.lock:
                raise ProcessIdTaken(message.text, Path(message.lock))
            if isinstance(message, CheckFailed):
                complain(message.text)
                return message.code
            found.append(message)
            commits += message.line.commits
            progress.show(
                f"checked {counted(commits, 'commit')} of {counted(len(found), 'session')}"
            )
            if as_json:
                write(json_line(message.line))
        if not as_json:
            for text in table(_COLUMNS, (one.cells for one in found)):
                write(text)
    return FINE if all(one.line.verdict.intact for one in found) else FAILED


def check_store(
    data: Path,
    session: str | None = None,
    anchors: Mapping[bytes, list[Anchor]] = _NO_ANCHORS,
    *,
    rebuild: bool = False,
) -> Iterator[CheckedLine | CheckFailed]:
    """Yield the results of a separate process, and its failure if it did not finish."""

    def work(send: Send) -> None:
        for message in _work(data, session, anchors, rebuild=rebuild):
            send(msgspec.msgpack.encode(message))

    decoder: msgspec.msgpack.Decoder[CheckedLine | CheckFailed]
    decoder = msgspec.msgpack.Decoder(CheckedLine | CheckFailed)
    seconds = seconds_for(data)
    try:
        yield from map(decoder.decode, Worker(work, seconds).messages(_PATIENCE * seconds))
    except Unfinished:
        text = (
            f"not checked: the store could not be read in {_PATIENCE * seconds:.0f} s, run it again"
        )
        yield CheckFailed(text, NO_STORE)
    except WorkerFailed as error:
        yield _damaged(f"reading the store failed ({error})", "restore the folder from a backup")


def _work(
    data: Path, session: str | None, anchors: Mapping[bytes, list[Anchor]], *, rebuild: bool
) -> Iterator[CheckedLine | CheckFailed]:
    try:
        if rebuild:
            rebuild_indexes(data)
        with LmdbReader.open(data) as reader:
            yield from _checked_lines(reader, session, anchors)
    except ProcessIdTaken as taken:
        yield CheckFailed(str(taken), NO_STORE, str(taken.lock))
    except FAILURES as error:
        text, code = describe(error)
        yield CheckFailed(text, code)


def _checked_lines(
    reader: LmdbReader, session: str | None, anchors: Mapping[bytes, list[Anchor]]
) -> Iterator[CheckedLine]:
    for problem in reader.beside():
        yield _damaged(problem)
    if problems := reader.problems():
        # LMDB would crash or loop forever on such a file.
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield _damaged(f"log: {problems[0]}{more}", "restore the folder from a backup")
        return
    with reader.view() as view:
        wanted = None if session is None else find_session(view, session)
        for line in _check(view, wanted, anchors):
            yield CheckedLine(line, _cells(view, line))
        for problem in view.index_flaws():
            yield _damaged(problem, "`turnlog verify --rebuild` rebuilds the indexes from the log")


def _damaged(problem: str, advice: str = "") -> CheckedLine:
    detail = f"{problem}; {advice}" if advice else problem
    line = Finding(session=None, verdict=ChainVerdict.DAMAGED, detail=detail)
    return CheckedLine(line, _cells(None, line))


def _check(
    view: View, wanted: bytes | None, anchors: Mapping[bytes, list[Anchor]]
) -> Iterator[Finding]:
    found: set[bytes] = set()
    for row in view.sessions():
        if wanted in (None, row.session):
            found.add(row.session)
            # The index holds the newest commit's hash: an anchor beside the log.
            known = [Anchor(row.head_seq, row.head_hash), *anchors.get(row.session, [])]
            headers, parent = view.headers(row.session), partial(_hash_of, view)
            yield verify(row.session, headers, known, read=view.blob, parent=parent)
    for session, known in anchors.items():
        if session not in found and wanted in (None, session):
            yield verify(session, [], known)
    # Their session may be unknown to the index: they may be its newest or only commits.
    for flaw in view.flaws():
        yield _unplaced(flaw)


def _hash_of(view: View, session: bytes, seq: int) -> bytes | None:
    commit = view.get(session, seq)
    return commit.hash if commit is not None else None


def _unplaced(flaw: Flaw) -> Finding:
    one = flaw.first == flaw.last
    where = f"position {flaw.first}" if one else f"positions {flaw.first} to {flaw.last}"
    verdict = ChainVerdict.TRUNCATED if flaw.kind is FlawKind.MISSING else ChainVerdict.MUTATED
    return Finding(
        session=None, verdict=verdict, detail=f"{where} of the log {_FLAW_TEXTS[flaw.kind]}"
    )


def _read_anchors(file: BinaryIO | None) -> dict[bytes, list[Anchor]]:
    anchors: dict[bytes, list[Anchor]] = {}
    for number, line in enumerate(file or (), 1):
        try:
            read = msgspec.json.decode(line, type=_AnchorLine)
            session = ids.from_text(read.session)
            anchor = Anchor(read.seq, bytes.fromhex(read.hash.removeprefix("sha256:")))
        except ValueError:
            raise click.UsageError(
                f"line {number} of the --anchor file is not an anchor, give lines of "
                "`turnlog sessions --json`"
            ) from None
        anchors.setdefault(session, []).append(anchor)
    if file is not None and not anchors:
        raise click.UsageError(
            "the --anchor file holds no anchor, give lines of `turnlog sessions --json`"
        )
    return anchors


def _cells(view: View | None, line: Finding) -> list[Cell]:
    style = Style.GOOD if line.verdict.intact else Style.BAD
    return [
        session_id_cell(view, line.session) if view and line.session else Cell("-"),
        Cell(line.verdict, style),
        Cell(str(line.commits)),
        Cell("" if line.seq is None else str(line.seq)),
        Cell(line.detail),
    ]
