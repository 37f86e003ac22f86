"""Whether a request may be forwarded: it may come from a page that rebound DNS, or ask for a tunnel."""

from typing import Final

from turnlog.observe.call_events import Refusal
from turnlog.wire.http import allowed_host, allowed_origin, can_dechunk, fields

from .answers import Made, problem
from .heads import Memo, RequestHead, RequestStart
from .routes import authority_of

_HOST: Final = 512
"""bytes of the longest Host that is remembered."""
Refused = tuple[Refusal, Made]
"""Why a request is not forwarded, and the answer to it."""


class Admission:
    """Looks at the beginnings of requests. `hosts` are the names that are served."""

    def __init__(self, hosts: frozenset[str]) -> None:
        self._hosts = hosts
        self._is_served: Memo[bytes, bool] = Memo(
            lambda host: allowed_host(host, hosts), lambda host: len(host) <= _HOST
        )
        self._is_welcome: Memo[RequestHead, bool] = Memo(
            lambda head: self._fields_refused(head, "") is None, lambda head: head.is_moderate
        )

    def admits(self, start: RequestStart) -> bool:
        """Tell whether a request may be forwarded."""
        # Of what goes to a path, as nearly all does, the fields alone decide.
        if start.target.startswith("/") and start.method != "CONNECT":
            return self._is_welcome(start.head)
        return self.refusal(start) is None

    def refusal(self, start: RequestStart) -> Refused | None:
        """Return why a request must not be forwarded."""
        refused = self._fields_refused(start.head, authority_of(start.target))
        if refused is None and start.method == "CONNECT":
            detail = "turnlog forwards requests, it opens no tunnels"
            return Refusal.METHOD, problem(405, "Method Not Allowed", detail, {})
        return refused

    def _fields_refused(self, head: RequestHead, authority: str) -> Refused | None:
        """Return why fields must not be forwarded; `authority` is that of the target, if it has one."""
        # An absolute target's authority counts instead of Host (RFC 9112 section 3.2.2).
        absolute = authority.encode("utf-8", "surrogateescape")
        host = absolute or head.fields.get(b"host", b"")
        if not self._is_served(host) or b"host" in head.repeated:
            detail = "this Host is not served here; add it to allow_hosts if it should be"
            return Refusal.HOST, problem(421, "Misdirected Request", detail, {})
        origins = fields(head.raw, b"origin")
        if not all(allowed_origin(origin, self._hosts) for origin in origins):
            detail = "this Origin may not call; add its host to allow_hosts if it should"
            return Refusal.ORIGIN, problem(403, "Forbidden", detail, {})
        if b"transfer-encoding" in head.fields and not can_dechunk(head.raw):
            detail = "only the transfer coding chunked can be undone here (RFC 9112 section 6.1)"
            return Refusal.FRAMING, problem(501, "Not Implemented", detail, {})
        return None
