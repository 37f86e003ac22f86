"""One HTTP/1.1 connection to a tool server, carrying one exchange at a time (RFC 9112).

The parser is httptools; what is here is flow control, the end of messages, and whether the
connection can be used again. Bytes of heads and bodies stay as they are.
"""

import asyncio
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import httptools

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.record.errors import Failure, Progress
from turnlog.wire.http.head import BadFraming, Body, Framing, Headers, framing
from turnlog.wire.http.mend import Mender

from .message_heads import Raw, without_lengths
from .wakeup import Bell

_UNTIL_CLOSE: Final = Framing(Body.UNTIL_CLOSE)
# To look a member up costs more than to compare it.
_LENGTH: Final = Body.LENGTH
_NONE: Final = Body.NONE
_SENDING: Final = Phase.SENDING
READ_AHEAD: Final = 256 * 1024
"""bytes: more than this is not read before the agent took what came earlier."""
HEAD_LIMIT: Final = 256 * 1024
"""bytes: longest head of an answer."""
_TRAILERS_END: Final = {b"\n": b"\r\n", b"\r": b"\n\r\n"}
"""What ends a trailer section, by the last byte that came of it."""
Interim = Callable[[int, bytes, Headers], None]
"""Takes status, reason and fields of an interim answer (1xx)."""


class _UnsoundHead(Exception):
    """A head that the parser accepts and nobody else should."""


class Connection(asyncio.Protocol):
    """The transport's protocol, and the parser's callbacks."""

    # With more than 29 attributes Python keeps all of them in a dict, and takes longer to set them.
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._bell = Bell(asyncio.get_running_loop())
        """Rings when something has come, or the connection is gone."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._error: Failure | None = None
        self._closed = False
        self._busy = False
        self._poll = select.poll()
        self._progress = Progress()
        self._pieces: list[bytes] = []
        self._mender = Mender()
        self._parser_clean = False
        """Whether the parser stands behind a whole message, ready for the next."""
        self._parser_lenient = False
        """Whether it takes a lone LF for the end of a line, as in heads."""
        self._interim: Interim | None = None
        self._size = 0
        self._paused = False
        self._reset("GET")

    def _reset(self, method: str) -> None:
        """Get ready for an answer. Of the one before nothing lies here any more: see `finish`."""
        if self._parser_clean and self._parser_lenient:
            self._parser_clean = False
        else:
            self._renew()
        self._method = method
        self._mender.passed = 0
        self._head_size = 0
        self._headers_done = False
        self._keep_alive = False
        self._uploaded = False
        self._last_byte = b""
        self._last_chunk_may_be_here = False
        """Whether nothing has come behind the size of the latest chunk."""
        self.complete = False
        """Whether the whole answer has arrived."""
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.raw: Raw = ()
        """The fields without Content-Length."""
        self.framing = _UNTIL_CLOSE

    def _renew(self, *, mended: bool = False) -> None:
        """Get a parser ready for a head, or for one that was mended."""
        if not self._parser_clean:
            self._parser = httptools.HttpResponseParser(self)
        # A lone LF ends a line (RFC 9112 section 2.2); chunked wins over a length (section 6.3);
        # blanks may stand behind a chunk's size. A mended head keeps control characters in values
        # (RFC 9110 section 5.5); the parser would let NUL and CR pass as well, which are gone there.
        self._parser.set_dangerous_leniencies(
            lenient_headers=mended,
            lenient_chunked_length=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._parser_lenient = not mended
        self._parser_clean = False

    # -- one exchange ----------------------------------------------------------------------

    def begin(self, method: str, progress: Progress, interim: Interim | None = None) -> None:
        """Get ready for a request, whose `progress` will be kept; `interim` gets 1xx answers."""
        self._reset(method)
        self._interim = interim
        self._progress = progress
        self._busy = True
        progress.phase = _SENDING
        if progress.patience is not None and not progress.patience.connected(self.expire):
            progress.patience = None

    def write(self, data: bytes) -> None:
        """Hand bytes of the request to the transport. Raises `Failure`."""
        if self._error is not None:
            raise self._error
        if self._transport is None:
            raise Failure(ErrorKind.CONNECTION_LOST, Phase.SENDING, "the connection is closed")
        self._transport.write(data)

    def sent(self) -> None:
        """Note that the whole request has been handed to the transport."""
        self._uploaded = True
        self._progress.sent()

    async def drain(self) -> None:
        """Wait while the server reads slowly. Raises `Failure`."""
        await self._writable.wait()
        if self._error is not None:
            raise self._error

    async def head(self) -> None:
        """Wait for the answer's head. Raises `Failure`."""
        while not self._headers_done:
            if self._error is not None:
                raise self._error
            await self._bell

    async def read(self) -> bytes:
        """Return what has come of the body; nothing at its end. Raises `Failure` if it is cut."""
        while not self._pieces:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._bell
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    @property
    def at_end(self) -> bool:
        """Whether the whole answer has come and been read."""
        return self.complete and not self._pieces

    def finish(self) -> bool:
        """End the exchange; tell whether the connection can carry another."""
        self._busy = False
        self._interim = None
        done = self.complete and self._uploaded and not self._pieces and not self._paused
        if done and self._keep_alive and not self._closed:
            return True
        self.close()
        return False

    def expire(self, kind: ErrorKind, detail: str) -> bool:
        """Give the exchange up because time has run out; false where nobody waits for it now."""
        if self._bell.done() or self._error is not None:
            return False
        phase = Phase.BODY if self._headers_done else self._progress.phase
        failure = Failure(kind, phase, detail)
        if not self._progress.outlives(failure):
            self._error = failure
            self.close()
            self._wake()
        return True

    def close(self) -> None:
        """Break the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_quiet(self) -> bool:
        """Tell whether the server has neither closed an idle connection nor said anything since.

        The loop tells of that only when it looks again, and the server may close behind an answer.
        """
        return not (self._closed or self._error is not None or self._poll.poll(0))

    def _wake(self) -> None:
        self._bell.set_result(None)

    def fail(self, detail: str, kind: ErrorKind = ErrorKind.CONNECTION_LOST) -> None:
        """Give the exchange up: it cannot be completed."""
        if self._error is None and not self.complete:
            phase = Phase.BODY if self._headers_done else Phase.SENT
            self._error = Failure(kind, phase, detail)
        self.close()
        self._wake()

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Take what came; let who waits for it go on."""
        self._take(data)
        self._bell.ring()

    def _take(self, data: bytes) -> None:
        """Parse what came; mend a head that the parser refused, if it can be."""
        why = self._fed(data)
        while why and (whole := self._mended(why)):
            head, rest = whole
            why = self._fed(head) or (self._fed(rest) if rest and self._error is None else "")

    def _fed(self, data: bytes) -> str:
        """Feed the parser; return why it refused. Bytes that nobody asked for make all useless."""
        if not self._busy or self.complete:
            self._keep_alive = False
            self._closed = True
            self.close()
            return ""
        why = ""
        # Of a trailer section as well: it is collected like a head, and then dropped.
        self._head_size += len(data)
        self._last_byte = data[-1:]
        if not self._headers_done:
            self._mender.take(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            why = str(error.__context__ or error)
        except httptools.HttpParserUpgrade as error:
            self._refuse(f"the answer changes the protocol: {error}")
        if self._head_size > HEAD_LIMIT and not self.complete:
            self._refuse(f"the answer's head or trailers are longer than {HEAD_LIMIT} bytes")
        return why

    def _refuse(self, detail: str) -> None:
        """Fail at an answer that nobody can read; amid a body it is one that was cut."""
        amid = self._headers_done
        self.fail(detail, ErrorKind.CONNECTION_LOST if amid else ErrorKind.MALFORMED_RESULT)

    def _mended(self, why: str) -> tuple[bytes, bytes] | None:
        """Return what `Mender.mend` does; `None` where that cannot be mended as well."""
        self._mender.why = f"the answer is not HTTP/1.1: {why}"
        found = (b"", b"") if self._headers_done else self._mender.mend()
        if found is None:
            return None
        if not found[0]:
            self._refuse(self._mender.why)
            return None
        self._renew(mended=True)
        self.reason, self.headers = b"", []
        self._head_size = 0
        return found

    def _is_hopeless(self) -> bool:
        """Tell whether more bytes could not have made a head of what the parser refused."""
        self._renew(mended=True)
        try:
            self._parser.feed_data(self._mender.guess())
        except httptools.HttpParserError:
            return True
        return False

    def eof_received(self) -> bool:
        """Take the end of the stream as the end of a body that has no other."""
        if self._headers_done and self._is_ended_by_close():
            self.complete = True
            self._wake()
        elif self._mender.waits and self._is_hopeless():
            self._refuse(self._mender.why)
        return False

    def _is_ended_by_close(self) -> bool:
        """Return whether the end of the stream ends the body as well.

        A chunked one is complete once its last chunk has come (RFC 9112 section 8), also where the
        trailers behind the line with the size 0 are missing or cut.
        """
        if not self._last_chunk_may_be_here:
            return self.framing.body is Body.UNTIL_CLOSE
        came = len(self._pieces)
        with suppress(httptools.HttpParserError):
            # Elsewhere than at a line's end the cut lies in a field, whose name may lack its colon.
            self._parser.feed_data(_TRAILERS_END.get(self._last_byte, b":\r\n\r\n"))
        # In a chunk that is not the last one this was data.
        del self._pieces[came:]
        return self.complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Learn that the connection is gone."""
        self._closed = True
        self._interim = None
        self.resume_writing()
        if exc is not None and self._busy and not self.complete:
            self._read_what_is_left()
        if self._busy and not self.complete:
            self.fail(str(exc) if exc else "the server closed the connection")
        self._wake()
        self._parser_clean = False
        del self._parser  # it refers to this connection: both would wait for the collector

    def _read_what_is_left(self) -> None:
        """Take in an answer that came before the server closed on a request still being sent.

        The transport gives up when it cannot write; what it has not read is in the socket yet.
        """
        transport = self._transport
        if transport is not None and transport.get_extra_info("ssl_object") is None:
            with suppress(OSError):
                while data := os.read(transport.get_extra_info("socket").fileno(), READ_AHEAD):
                    self._take(data)
        self.eof_received()

    def pause_writing(self) -> None:
        """Stop writing until the transport's buffer is empty enough."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on writing."""
        self._writable.set()

    # -- httptools -------------------------------------------------------------------------

    def on_status(self, status: bytes) -> None:
        """Collect the reason phrase."""
        if not self._headers_done:
            self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a field; those of a trailer section are dropped."""
        if not self._headers_done:
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Finish the head, unless it is an interim one (1xx)."""
        if self._headers_done:
            return
        status = self._parser.get_status_code()
        if status < 100 or status == 101:
            # Nobody asked for another protocol: Upgrade is not passed on (RFC 9110, 15.2.2).
            self._refuse(f"the answer's status is {status:03d}")
            return
        if status < 200:
            if self._interim is not None:
                self._interim(status, self.reason, self.headers)
            self.reason, self.headers = b"", []
            self._mender.is_over = not self._parser.should_keep_alive()
            self._head_size = self._mender.passes()
            return
        found = framing(status, self._method, self.headers)
        if isinstance(found, BadFraming):
            raise _UnsoundHead(f"nobody can tell where the answer ends: {found}")
        if found.body is not _LENGTH:
            # In chunks a lone LF would let data pass for the end of data.
            self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=False)
            self._parser_lenient = False
        self.status = status
        self.raw = without_lengths(self.headers)
        self.framing = found
        self._headers_done = True
        self._mender.read()
        self._keep_alive = self._parser.should_keep_alive()
        self.complete = found.body is _NONE

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body; stop reading when too much lies here."""
        if self.complete:
            self._keep_alive = False
            return
        self._head_size = 0
        self._last_chunk_may_be_here = False
        self._pieces.append(data)
        self._size += len(data)
        if self._size > READ_AHEAD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_chunk_header(self) -> None:
        """Note that a chunk begins; without data it is the last one."""
        self._last_chunk_may_be_here = self._headers_done

    def on_message_complete(self) -> None:
        """Finish the answer, unless it is an interim one."""
        if self._headers_done:
            # To HEAD, and so for other answers without body, the parser waits for one.
            self._parser_clean = self._method != "HEAD" and not self.complete
            self.complete = True

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for."""
        if self.complete:
            self._keep_alive = False
