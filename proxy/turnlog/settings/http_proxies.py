"""Which HTTP proxy leads to an upstream: none, a configured one, or that of the environment."""

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
    """Value of Proxy-Authorization; empty for none. Never to be shown."""
    source: str
    """What names it, such as HTTPS_PROXY."""

    @property
    def url(self) -> str:
        """Its URL, without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def read_proxy(text: str, source: str) -> HttpProxy:
    """Return the proxy that a URL names; one without a scheme is http.

    Raises `ValueError`, whose message does not hold the URL: there may be credentials in it.
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise ValueError(f"this is no URL of a proxy, {_ADVICE}") from None
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
    """Return the proxy that leads to the upstream with this URL; `None` where it is called direct.

    Raises `ValueError` where the environment names one that cannot be used.
    """
    if setting == NONE:
        return None
    if setting != FROM_ENVIRONMENT:
        return read_proxy(setting, "proxy")
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
        return read_proxy(found[name], source)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the `*_proxy` variables by what stands before that, as urllib reads them.

    Those in lower case count first, also where they are empty. In a CGI script HTTP_PROXY is a header
    of the client's (CVE-2016-1000110).
    """
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
    """Return whether NO_PROXY names the host of a URL: itself, a domain around it, or its network.

    An entry may end in a port; `*` names all hosts.
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
    """Return whether a host is an address of a network, which may be a single address."""
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def unusable_proxies(
    upstreams: Mapping[str, tuple[str, str]], environ: Mapping[str, str]
) -> list[str]:
    """Return a warning for each upstream whose proxy in the environment cannot be used.

    `upstreams` are setting and URL by name.
    """
    warnings: list[str] = []
    for name, (setting, url) in upstreams.items():
        try:
            proxy_for(setting, url, environ)
        except ValueError as error:
            warnings.append(f"upstream {name!r} is called without a proxy; {error}")
    return warnings
