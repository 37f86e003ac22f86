"""Whether a request may be forwarded: it may come from a page that rebound DNS, or ask for a tunnel."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from turnlog.observe.events import RefusalReason
from turnlog.record.own_answers import OwnAnswer, problem
from turnlog.transport.http1 import HEADS
from turnlog.transport.message_heads import RequestHead, RequestStart
from turnlog.transport.routes import authority_of, is_page, is_probe, origin_form
from turnlog.wire.http.head import (
    allowed_host,
    allowed_origin,
    can_dechunk,
    fields,
    is_of_another_site,
)

_SHOWN: Final = 200
"""Characters of a refused value that are shown."""
_READING: Final = frozenset({"GET", "HEAD"})


class Refused(Struct, frozen=True):
    """Why a request is not forwarded, and the answer to it."""

    reason: RefusalReason
    made: OwnAnswer
    value: str = ""
    """What was refused, such as the Host, without secrets."""


class Admission:
    """Decides which requests are served, by their beginnings.

    `hosts` are the names that are served, `origins` those that pages may have beside them; `clean`
    cuts secrets out of a text.
    """

    def __init__(
        self, hosts: frozenset[str], origins: frozenset[str], clean: Callable[[str], str]
    ) -> None:
        self._hosts = hosts
        self._origins = origins
        self._clean = clean
        self._is_refused = lru_cache(HEADS)(self._refuses)

    def admits(self, start: RequestStart) -> bool:
        """Return whether a request may be forwarded."""
        # Of what goes to a path, as nearly all does, the fields alone decide.
        if start.target.startswith("/") and start.method != "CONNECT":
            is_known = start.head.is_moderate
            return not (self._is_refused if is_known else self._refuses)(start.head)
        return self.refusal(start) is None

    def refusal(self, start: RequestStart) -> Refused | None:
        """Return why a request must not be served; `None` where it may be."""
        path = origin_form(start.target).partition("?")[0]
        reads = start.method in _READING
        refused = (
            (None if reads and is_probe(path) else self._host_refused(start))
            or self._origin_refused(start.head)
            or (None if self._is_navigation(start, path) else self._site_refused(start.head))
            or self._framing_refused(start.head)
        )
        if refused is None and start.method == "CONNECT":
            detail = "turnlog forwards requests, it opens no tunnels"
            return Refused(RefusalReason.METHOD, problem(405, "Method Not Allowed", detail, {}))
        return refused

    def shown(self, value: str) -> str:
        """Return a value of a request as it may be shown: without secrets, and not long."""
        return self._clean(value[:_SHOWN])

    def _refuses(self, head: RequestHead) -> bool:
        """Return whether a request to a path that is not turnlog's own is refused for its fields."""
        return (
            not allowed_host(head.fields.get(b"host", b""), self._hosts)
            or self._origin_refused(head) is not None
            or self._site_refused(head) is not None
            or self._framing_refused(head) is not None
        )

    def _host_refused(self, start: RequestStart) -> Refused | None:
        # An absolute target's authority counts instead of Host (RFC 9112 section 3.2.2).
        absolute = authority_of(start.target).encode("utf-8", "surrogateescape")
        host = absolute or start.head.fields.get(b"host", b"")
        if allowed_host(host, self._hosts):
            return None
        value = self._text(host)
        detail = f"Host {value!r} is not served here; add it to allow_hosts if it should be"
        return Refused(RefusalReason.HOST, problem(421, "Misdirected Request", detail, {}), value)

    def _origin_refused(self, head: RequestHead) -> Refused | None:
        for origin in fields(head.raw, b"origin"):
            if allowed_origin(origin, self._hosts, self._origins):
                continue
            value = self._text(origin)
            advice = (
                "it stands for any sandboxed page or file, so it cannot be allowed"
                if origin == b"null"
                else "add it to allow_origins if it should"
            )
            detail = f"a page of Origin {value!r} may not call here; {advice}"
            return Refused(RefusalReason.ORIGIN, problem(403, "Forbidden", detail, {}), value)
        return None

    def _site_refused(self, head: RequestHead) -> Refused | None:
        """Refuse what a page of another site made a browser send without its Origin."""
        site = head.fields.get(b"sec-fetch-site", b"")
        if not is_of_another_site(site) or b"origin" in head.fields:
            return None
        value = self._text(site)
        detail = (
            f"Sec-Fetch-Site {value!r} without Origin: a page of another site may not call here; "
            "if it should, let it send its Origin (as fetch does in mode cors), and add that to "
            "allow_origins"
        )
        return Refused(RefusalReason.ORIGIN, problem(403, "Forbidden", detail, {}), value)

    def _framing_refused(self, head: RequestHead) -> Refused | None:
        if b"transfer-encoding" not in head.fields or can_dechunk(head.raw):
            return None
        detail = "only the transfer coding chunked can be undone here (RFC 9112 section 6.1)"
        return Refused(RefusalReason.FRAMING, problem(501, "Not Implemented", detail, {}))

    def _is_navigation(self, start: RequestStart, path: str) -> bool:
        """Return whether a browser opens one of turnlog's own pages in a tab, by a link for instance.

        What such a page shows, no other site can read; the API and the agent's tools are no pages.
        """
        given = start.head.fields
        return (
            start.method == "GET"
            and is_page(path)
            and given.get(b"sec-fetch-mode") == b"navigate"
            and given.get(b"sec-fetch-dest") == b"document"
        )

    def _text(self, value: bytes) -> str:
        return self.shown(value.decode("utf-8", "replace"))
