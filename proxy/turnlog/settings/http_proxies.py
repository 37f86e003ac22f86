"""The HTTP proxy for an upstream: none, a configured one, or that of the environment."""

from base64 import b64encode
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from msgspec import Struct

from turnlog.wire.http.origin import is_this_machine

FROM_ENVIRONMENT: Final = "env"
NONE: Final = "none"
_PORTS: Final = {"http": 80, "https": 443}
_ADVICE: Final = "write env, none, or a URL like http://proxy.internal:3128"


class HttpProxy(Struct, frozen=True, kw_only=True):
    """An HTTP proxy (RFC 9110 section 3.7) between turnlog and an upstream."""

    host: str
    port: int
    authorization: bytes
    """Value of Proxy-Authorization, empty for none. Secret: must not be shown."""
    source: str
    """The setting or variable that names it, such as HTTPS_PROXY."""

    @property
    def url(self) -> str:
        """Its URL without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def parse_proxy(text: str, source: str) -> HttpProxy:
    """Return the proxy with this URL; a missing scheme means http. Raises `ValueError`."""
    # The errors do not quote the URL, which may hold credentials.
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise ValueError(f"this is not the URL of a proxy, {_ADVICE}") from None
    if parts.scheme.lower() != "http":
        scheme = parts.scheme.lower()
        raise ValueError(f"a proxy of the scheme {scheme!r} cannot be used here, {_ADVICE}")
    if not parts.hostname or not url.isprintable():
        raise ValueError(f"this URL of a proxy has no host, {_ADVICE}")
    authorization = b""
    if parts.username is not None:
        user, password = unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or "")
        authorization = b"Basic " + b64encode(user + b":" + password)
    return HttpProxy(host=parts.hostname, port=port, authorization=authorization, source=source)


def proxy_for(setting: str, url: str, environ: Mapping[str, str]) -> HttpProxy | None:
    """Return the proxy for the upstream with this URL; `None` for a direct connection.

    Raises `ValueError` when the environment names a proxy that cannot be used.
    """
    if setting == NONE:
        return None
    if setting != FROM_ENVIRONMENT:
        return parse_proxy(setting, "proxy")
    parts = urlsplit(url)
    host, scheme = parts.hostname or "", parts.scheme.lower()
    if is_this_machine(host):
        return None
    found = _variables(environ)
    name = scheme if scheme in found else "all"
    if name not in found or _is_excepted(parts, found.get("no", "")):
        return None
    source = f"{name.upper()}_PROXY"
    try:
        return parse_proxy(found[name], source)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the `*_proxy` variables by scheme, read as urllib does."""
    # Lower case wins, even when empty. In a CGI script HTTP_PROXY is the client's Proxy header
    # (CVE-2016-1000110).
    found = {
        name.lower().removesuffix("_proxy"): value
        for name, value in environ.items()
        if value and name.lower().endswith("_proxy")
    }
    if "REQUEST_METHOD" in environ:
        found.pop("http", None)
    for name, value in environ.items():
        if name.endswith("_proxy") and name == name.lower():
            found[name.removesuffix("_proxy")] = value
    return {name: value for name, value in found.items() if value}


def _is_excepted(url: SplitResult, exceptions: str) -> bool:
    """Return whether NO_PROXY covers a URL by host, domain or network; `*` covers every host.

    An entry may end in a port.
    """
    host = (url.hostname or "").removesuffix(".")
    port = url.port or _PORTS[url.scheme.lower()]
    for entry in exceptions.lower().split(","):
        if entry.strip() == "*":
            return True
        name = entry.strip().removeprefix("*").lstrip(".")
        if _is_within(host, name.strip("[]")):
            return True
        name = name.removesuffix(f":{port}")
        if name and (host == name.strip("[]") or host.endswith(f".{name}")):
            return True
    return False


def _is_within(host: str, network: str) -> bool:
    """Return whether a host is an address within a network or equal to an address."""
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def proxy_warnings(
    upstreams: Mapping[str, tuple[str, str]], environ: Mapping[str, str]
) -> list[str]:
    """Return a warning for each upstream whose proxy in the environment cannot be used.

    `upstreams` maps names to the setting `proxy` and the URL.
    """
    warnings: list[str] = []
    for name, (setting, url) in upstreams.items():
        try:
            proxy_for(setting, url, environ)
        except ValueError as error:
            warnings.append(f"upstream {name!r} is called without a proxy; {error}")
    return warnings
