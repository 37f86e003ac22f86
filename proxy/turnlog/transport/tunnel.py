"""Connections through an HTTP proxy: CONNECT (RFC 9110 section 9.3.6), then TLS with the upstream."""

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.record.errors import Failure
from turnlog.settings.http_proxies import HttpProxy

_P = TypeVar("_P", bound=asyncio.Protocol)
_LONGEST_HEAD: Final = 64 * 1024
_PATIENCE: Final = 600.0
"""s that a proxy may take to answer, where no rule says less."""
_STATUS: Final = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?: ([\t\x20-\x7e]{0,80}))?")


class _Connecting(asyncio.Protocol):
    """Reads the head of the proxy's answer; `head` is what came of it where the proxy hung up."""

    def __init__(self) -> None:
        self._data = b""
        self.head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if b"\r\n\r\n" in self._data or len(self._data) > _LONGEST_HEAD:
            self._came()

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()

    def _came(self) -> None:
        if not self.head.done():
            self.head.set_result(self._data)


async def tunnelled(
    proxy: HttpProxy, host: str, port: int, tls: ssl.SSLContext, made: Callable[[], _P]
) -> _P:
    """Return the protocol of a TLS connection to `host` through a proxy.

    Raises `Failure` where the proxy refuses, and `OSError`.
    """
    loop = asyncio.get_running_loop()
    transport, connecting = await loop.create_connection(_Connecting, proxy.host, proxy.port)
    try:
        transport.write(_request(proxy, host, port))
        async with asyncio.timeout(_PATIENCE):
            _check(proxy, await connecting.head)
        protocol = made()
        secured = await loop.start_tls(transport, protocol, tls, server_hostname=host)
        assert secured is not None  # only for what is no socket
        protocol.connection_made(secured)
    except BaseException:
        transport.abort()
        raise
    return protocol


def _request(proxy: HttpProxy, host: str, port: int) -> bytes:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n".encode()
    if proxy.authorization:
        head += b"Proxy-Authorization: %b\r\n" % proxy.authorization
    return head + b"\r\n"


def _check(proxy: HttpProxy, head: bytes) -> None:
    """Raise `Failure` unless the proxy says that there is a tunnel now."""
    found = _STATUS.match(head)
    if found is not None and found[1].startswith(b"2") and b"\r\n\r\n" in head:
        return
    said = b" ".join(filter(None, found.groups())).decode() if found else "nothing that is HTTP"
    detail = f"the proxy {proxy.url} ({proxy.source}) answered CONNECT with {said}"
    raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail)
