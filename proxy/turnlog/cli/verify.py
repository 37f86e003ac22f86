"""`turnlog verify`: check the chain of one session or of all."""

from collections.abc import Iterator
from typing import BinaryIO

import click
import msgspec
from msgspec import Struct

from turnlog.core import ids
from turnlog.sessions.log import find_session
from turnlog.sessions.verify import Anchor, Finding, Verdict, verify
from turnlog.store.base import Flaw, FlawKind, Gone, View

from .attempts import session_id_cell
from .failures import FAILED, FINE
from .options import data_option, json_option, open_view, printout
from .render import Cell, Column, Style, json_line, table, terminal_width

_SAID = {
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


class _Line(Struct, frozen=True, kw_only=True):
    """One line of `turnlog verify --json`."""

    session: str | None
    """`None` for what lies in the log and belongs to no session that can be told."""
    verdict: Verdict
    commits: int
    bodies_dropped: int
    bad_seq: int | None
    detail: str
    gone: dict[Gone, int]
    """How many payloads cannot be read any more, by the reason."""


@click.command("verify")
@click.argument("session", required=False)
@click.option(
    "--anchor",
    type=click.File("rb"),
    metavar="FILE",
    help="Lines of `turnlog sessions --json` that were kept elsewhere.",
)
@data_option
@json_option
def command(session: str | None, anchor: BinaryIO | None, data: str, as_json: bool) -> int:
    """Check that the log is as it was written; all sessions, or SESSION.

    Finds any change that does not also rewrite every later commit of the session and seal the log
    anew; with --anchor that, too. Exit code 1 when something was found.
    """
    anchors = _read_anchors(anchor)
    with printout() as write, open_view(data) as view:
        wanted = None if session is None else find_session(view, session)
        lines = list(_check(view, wanted, anchors))
        for text in map(json_line, lines) if as_json else _text(view, lines):
            write(text)
    return FINE if all(line.verdict.intact for line in lines) else FAILED


def _check(view: View, wanted: bytes | None, anchors: dict[bytes, list[Anchor]]) -> Iterator[_Line]:
    found: set[bytes] = set()
    for row in view.sessions():
        if wanted in (None, row.session):
            found.add(row.session)
            # The index remembers the newest commit: a cheap anchor that lies beside the log.
            known = [Anchor(row.head_seq, row.head_hash), *anchors.get(row.session, [])]
            finding = verify(row.session, view.headers(row.session), known, gone=view.gone)
            yield _line(row.session, finding)
    for session, known in anchors.items():
        if session not in found and wanted in (None, session):
            yield _line(session, verify(session, [], known))
    # Whose they were the index may not know: they may have been a session's newest, or all it had.
    for flaw in view.flaws():
        yield _line(None, _unplaced(flaw))


def _unplaced(flaw: Flaw) -> Finding:
    one = flaw.first == flaw.last
    where = f"position {flaw.first}" if one else f"positions {flaw.first} to {flaw.last}"
    verdict = Verdict.TRUNCATED if flaw.kind is FlawKind.MISSING else Verdict.MUTATED
    return Finding(verdict=verdict, commits=0, detail=f"{where} of the log {_SAID[flaw.kind]}")


def _line(session: bytes | None, finding: Finding) -> _Line:
    return _Line(
        session=None if session is None else ids.to_text(session),
        verdict=finding.verdict,
        commits=finding.commits,
        bodies_dropped=finding.bodies_dropped,
        bad_seq=finding.seq,
        detail=finding.detail,
        gone=finding.gone,
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
                f"line {number} of the --anchor file is no anchor, give lines of "
                "`turnlog sessions --json`"
            ) from None
        anchors.setdefault(session, []).append(anchor)
    if file is not None and not anchors:
        raise click.UsageError(
            "the --anchor file holds no anchor, give lines of `turnlog sessions --json`"
        )
    return anchors


def _text(view: View, lines: list[_Line]) -> Iterator[str]:
    rows = (_cells(view, line) for line in lines)
    return table(_COLUMNS, rows, width=terminal_width())


def _cells(view: View, line: _Line) -> list[Cell]:
    style = Style.GOOD if line.verdict.intact else Style.BAD
    return [
        session_id_cell(view, line.session) if line.session else Cell("-"),
        Cell(line.verdict, style),
        Cell(str(line.commits)),
        Cell("" if line.bad_seq is None else str(line.bad_seq)),
        Cell(line.detail),
    ]
