"""Bundles: one session in one file, to go on with elsewhere.

A bundle is JSON Lines in one zstd stream, so `zstd -dc FILE | jq` shows it: a head, the payloads,
the commits in order, and an end with the sha256 of all lines before it. Headers and bodies are the
stored bytes, so the chain and the handles of payloads stay what they are. Bytes are in base64.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core import ids
from turnlog.core.commit import decode_body, decode_link, digest
from turnlog.core.kinds import Gone
from turnlog.sessions.errors import BundleError
from turnlog.sessions.verify import verify
from turnlog.store.base import Blob
from turnlog.store.blobs import DIGEST
from turnlog.store.data_folder import KEY_BYTES
from turnlog.store.read.view import View

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMAT: Final = 1
"""Of bundles; a reader refuses a newer one."""
_LONGEST: Final = 1 << 30
"""Bytes of a line; a payload is one line."""
_LEVEL: Final = 6
_BEGIN: Final = b'{"type":"bundle",'
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
"""Of a zstd frame, RFC 8878 section 3.1.1."""
Watch = Callable[[str], None]
"""Called with the name of the part that is worked on."""
_Stored = tuple[bytes, bytes]


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """A line of a bundle. Readers ignore fields that they do not know."""


class BundleHead(_Part, frozen=True, tag="bundle"):
    """The first line: the session as a whole."""

    format: int
    turnlog: str
    """Version of the program that wrote it."""
    made_at: str
    session: str
    seq: int
    """Of the newest commit, which has this hash."""
    hash: str
    secret: bytes
    """The secret that the digests of this session are keyed with."""
    aliases: tuple[str, ...] = ()
    fence: int | None = None
    """seq of the commit by which the session was paused in its store, because it goes on elsewhere."""
    was_paused: bool = False
    """Whether it was paused before that."""
    resume: Raw = Raw(b"null")
    """What `turnlog resume` prints, for runtimes that read only this."""

    @property
    def id(self) -> bytes:
        """The session's id. Raises `ValueError`."""
        return ids.from_text(self.session)


class PayloadPart(_Part, frozen=True, tag="payload"):
    """An input or output by the handle that bodies have, or why it is gone."""

    handle: bytes
    data: bytes = b""
    redacted: bool = False
    cut: bool = False
    gone: Gone | None = None


class CommitPart(_Part, frozen=True, tag="commit"):
    """A commit as it is stored."""

    header: bytes
    body: bytes = b""
    """Empty for none, or one that was dropped."""


class BundleEnd(_Part, frozen=True, tag="end"):
    """The last line."""

    lines: int
    """Before this one."""
    digest: bytes
    """sha256 of those."""


_Line = BundleHead | PayloadPart | CommitPart | BundleEnd
_encode = msgspec.json.Encoder().encode
_decode: Final[Callable[[bytes], _Line]] = msgspec.json.Decoder(_Line).decode


def head_of_bundle(**fields: Any) -> BundleHead:
    """Return a head with the present format and version."""
    return BundleHead(format=FORMAT, turnlog=version("turnlog"), **fields)


def write_bundle(
    view: View, head: BundleHead, sink: IO[bytes], on_part: Watch = lambda _: None
) -> None:
    """Write a session as a bundle. Raises `StoreError`, `OSError`."""
    hashed, lines = sha256(), 0
    with zstd.ZstdFile(sink, "wb", level=_LEVEL) as packed:
        for part in _parts(view, head, on_part):
            line = _encode(part) + b"\n"
            hashed.update(line)
            packed.write(line)
            lines += 1
        packed.write(_encode(BundleEnd(lines=lines, digest=hashed.digest())) + b"\n")


def _parts(view: View, head: BundleHead, on_part: Watch) -> Iterator[_Part]:
    yield head
    # The index of handles is small beside the payloads; the records are read twice.
    handles = dict.fromkeys(h for _, body in _records(view, head) for h in payload_handles(body))
    for number, handle in enumerate(handles, 1):
        yield _payload(handle, view.blob(handle))
        on_part(f"payload {number} of {len(handles)}")
    for number, (header, body) in enumerate(_records(view, head), 1):
        yield CommitPart(header=header, body=body)
        on_part(f"commit {number}")


def _records(view: View, head: BundleHead) -> Iterator[_Stored]:
    return ((header, body or b"") for _, header, body in view.headers(head.id))


def payload_handles(body: bytes) -> list[bytes]:
    """Return the handles of the payloads that a stored body names; none where it cannot be read."""
    try:
        said = decode_body(body) if body else None
    except msgspec.DecodeError:
        said = None
    return [] if said is None else [*filter(None, (said.input_blob, said.output_blob))]


def _payload(handle: bytes, found: Blob | Gone) -> PayloadPart:
    if isinstance(found, Gone):
        return PayloadPart(handle=handle, gone=found)
    return PayloadPart(handle=handle, data=found.data, redacted=found.redacted, cut=found.cut)


def read_bundle(file: Path) -> Iterator[BundleHead | PayloadPart | CommitPart]:
    """Yield the lines of a bundle but for its end, which is checked. Raises `BundleError`, `OSError`."""
    hashed, lines = sha256(), 0
    with zstd.ZstdFile(file, "rb") as packed:
        while True:
            line = _next_line(packed, file, lines)
            part = _head(line, file) if lines == 0 else _read(line, file, lines)
            if isinstance(part, BundleEnd):
                is_whole = (part.lines, part.digest) == (lines, hashed.digest())
                if not is_whole or _next_line(packed, file, lines, is_last=True):
                    raise _damaged(file, "its lines are not those that were written")
                return
            hashed.update(line)
            lines += 1
            yield part


def _next_line(packed: zstd.ZstdFile, file: Path, lines: int, *, is_last: bool = False) -> bytes:
    try:
        line = packed.readline(_LONGEST)
    except EOFError:
        raise _cut_off(file, lines) from None
    except zstd.ZstdError as error:
        raise (_damaged(file, str(error)) if _is_zstd(file) else _foreign(file)) from None
    if is_last:
        return line
    if not line.endswith(b"\n"):
        raise _cut_off(file, lines) if lines or not line else _foreign(file)
    return line


def _is_zstd(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_MAGIC)) == _MAGIC


def _head(line: bytes, file: Path) -> BundleHead:
    try:
        known = msgspec.json.decode(line, type=dict[str, Raw])
        is_bundle = known.get("type") == Raw(b'"bundle"')
        form = msgspec.json.decode(known["format"], type=int) if is_bundle else FORMAT
    except (KeyError, UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        is_bundle = line.startswith(_BEGIN)
        raise (_damaged(file, f"line 1: {error}") if is_bundle else _foreign(file)) from None
    if form > FORMAT:
        raise BundleError(
            f"the bundle {str(file)!r} has format {form}, this turnlog reads "
            f"{FORMAT}; install a newer turnlog"
        )
    part = _read(line, file, 0) if is_bundle else None
    if not isinstance(part, BundleHead):
        raise _foreign(file)
    if flaw := _flaw(part):
        raise _damaged(file, flaw)
    return part


def _flaw(head: BundleHead) -> str:
    """Return what in a head no turnlog has written; empty for nothing."""
    if head.format < 1:
        return f"there is no format {head.format}"
    if len(head.secret) != KEY_BYTES:
        return f"its secret has {len(head.secret)} bytes, not {KEY_BYTES}"
    if head.fence is not None and not 0 <= head.fence <= head.seq:
        return f"its fence {head.fence} is none of its commits"
    return ""


def _read(line: bytes, file: Path, lines: int) -> _Line:
    try:
        part = _decode(line)
    except (UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        raise _damaged(file, f"line {lines + 1}: {error}") from None
    if isinstance(part, BundleHead) and lines:
        raise _damaged(file, f"line {lines + 1} is another head")
    return part


def _foreign(file: Path) -> BundleError:
    return BundleError(
        f"{str(file)!r} is not a bundle, name a file that `turnlog resume --bundle` wrote"
    )


def _cut_off(file: Path, lines: int) -> BundleError:
    return BundleError(
        f"the bundle {str(file)!r} is cut off after {lines} lines; copy it again, nothing was imported"
    )


def _damaged(file: Path, why: str) -> BundleError:
    return BundleError(
        f"the bundle {str(file)!r} is damaged ({why}); copy it again, nothing was imported"
    )


class CheckedBundle(Struct, frozen=True, kw_only=True):
    """A bundle that was read to its end, and is what was written."""

    file: Path
    head: BundleHead
    sizes: Mapping[bytes, int]
    """Bytes of each payload, by handle."""

    def parts(self) -> Iterator[PayloadPart | CommitPart]:
        """Yield its payloads, then its commits. Raises `BundleError`, `OSError`."""
        parts = read_bundle(self.file)
        if next(parts) != self.head:
            raise _damaged(self.file, "it is another file by now")
        yield from (part for part in parts if not isinstance(part, BundleHead))

    def records(self) -> Iterator[_Stored]:
        """Yield its headers and bodies."""
        yield from (
            (part.header, part.body) for part in self.parts() if isinstance(part, CommitPart)
        )


def check_bundle(file: Path, on_part: Watch = lambda _: None) -> CheckedBundle:
    """Read a bundle to its end: checksum, chain, bodies and payloads. Raises `BundleError`, `OSError`."""
    check = _BundleCheck(file, on_part)
    head = check.head
    found = verify(check.session, check.commits(), read=check.payload)
    if not found.verdict.intact:
        raise _damaged(file, f"commit {found.seq}: {found.detail}")
    newest = f"sha256:{digest(check.newest).hex()}"
    if newest != head.hash or decode_link(check.newest).seq != head.seq:
        raise _damaged(file, "its newest commit is not the one that its head names")
    return CheckedBundle(file=file, head=head, sizes=check.sizes)


class _BundleCheck:
    """The check of one bundle, line by line."""

    def __init__(self, file: Path, on_part: Watch) -> None:
        self._file = file
        self._on_part = on_part
        self._parts = read_bundle(file)
        try:
            head = next(self._parts)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise BundleError(
                f"cannot read {str(file)!r}: {why}; name a file that `turnlog resume --bundle` wrote"
            ) from None
        assert isinstance(head, BundleHead)
        self.head = head
        try:
            self.session = head.id
        except ValueError:
            raise _damaged(file, "its session has no id") from None
        self.payloads: dict[bytes, Blob | Gone] = {}
        """By handle, without their content."""
        self.sizes: dict[bytes, int] = {}
        self.newest = b""
        """Header of the last commit so far."""

    def commits(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the commits for `verify`, and read what is between them and behind."""
        for number, part in enumerate(self._parts, 1):
            self._on_part(f"line {number}")
            if isinstance(part, PayloadPart):
                self.sizes[part.handle] = len(part.data)
                self.payloads[part.handle] = part.gone or _checked(part, self._file)
            elif isinstance(part, CommitPart):
                self.newest = part.header
                yield number, part.header, part.body

    def payload(self, handle: bytes) -> Blob | Gone:
        """Return whether the payload under a handle is there; its content is not kept."""
        return self.payloads.get(handle, Gone.DAMAGED)


_KEPT: Final = Blob(b"")


def _checked(part: PayloadPart, file: Path) -> Blob:
    if sha256(part.data).digest() != part.handle[:DIGEST]:
        raise _damaged(file, "a payload is not what its handle names")
    return _KEPT
