"""Checks of Host, Origin and Sec-Fetch-Site against pages in a browser, also against DNS rebinding.

A web page can make a browser send requests to 127.0.0.1 under the page's own domain name; Host and
Origin then have that name. The name decides; a port counts only if one is configured.
"""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\\s@*]*)")
_WEB = (b"http", b"https")


@lru_cache(maxsize=256)
def allowed_host(host: bytes, allowed: frozenset[str]) -> bool:
    """Return whether the value of the only Host field names this proxy.

    Loopback names and addresses always do, on any port. `allowed` holds names and addresses in
    lower case; one with a port (`proxy.internal:7411`) is allowed on that port only.
    """
    found = _AUTHORITY.fullmatch(host)
    if found is None or int(found[2] or 0) > 65_535:
        return False
    name = _name(found[1].decode("ascii"))
    if name is None:
        return False
    if _is_loopback(name):
        return True
    port = (found[2] or b"").decode("ascii")
    known = {_normal(entry) for entry in allowed}
    return name in known or f"{name}:{port}" in known


_NOTHING: frozenset[str] = frozenset()


def allowed_origin(
    origin: bytes, allowed: frozenset[str], origins: frozenset[str] = _NOTHING
) -> bool:
    """Return whether a page of this origin may call; empty means the field is absent.

    Clients other than browsers send none. `null` (a sandbox, a file) is refused, as any page can
    have it. `origins` are configured ones, as returned by `normal_origin`. With other schemes than
    http and https, such as those of browser extensions, only configured names are allowed: a
    loopback name means nothing there.
    """
    if not origin:
        return True
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return False
    scheme, host = found[1].lower(), found[2]
    if origins and not origins.isdisjoint((_spelled(scheme, host), _spelled(scheme, b"*"))):
        return True
    if scheme in _WEB:
        return allowed_host(host, allowed)
    return not allowed_host(host, _NOTHING) and allowed_host(host, allowed)


def normal_origin(text: str) -> str:
    """Return a configured origin in normal form; `SCHEME://*` is any origin of a scheme but http(s).

    Raises `ValueError` for a text that no browser sends as an origin, or that would allow any page.
    """
    advice = "write SCHEME://HOST or SCHEME://HOST:PORT, like chrome-extension://ID"
    if text == "null":
        raise ValueError("'null' is the origin of any sandboxed page or file, leave it out")
    spelled = text.encode("utf-8", "replace").lower()
    any_host = spelled.endswith(b"://*")
    found = _ORIGIN.fullmatch(spelled.removesuffix(b"*") if any_host else spelled)
    if found is None or not text.isascii():
        raise ValueError(f"{text!r} is no origin, {advice}")
    scheme, host = found[1], found[2]
    if scheme in _WEB and any_host:
        raise ValueError(f"{text!r} would be any page of the web, {advice}")
    if scheme in _WEB and _AUTHORITY.fullmatch(host) is None:
        raise ValueError(f"{text!r} has no host, {advice}")
    return _spelled(scheme, b"*" if any_host else host)


def is_of_another_site(fetch_site: bytes) -> bool:
    """Return whether Sec-Fetch-Site marks a request as made by a page of another origin.

    Browsers send it (Fetch Metadata, W3C) also without an Origin: with GET requests for images,
    scripts, frames and links. `none` is a URL that the user typed in; other clients send nothing.
    """
    return fetch_site.strip(b" \t").lower() in (b"cross-site", b"same-site")


def _spelled(scheme: bytes, host: bytes) -> str:
    """Return an origin as browsers write it: in lower case, without the scheme's own port."""
    port = b":443" if scheme == b"https" else b":80"
    host = host.lower()
    host = host.removesuffix(port) if scheme in _WEB else host
    return f"{scheme.decode('latin-1')}://{host.decode('latin-1')}"


def is_this_machine(host: str) -> bool:
    """Return whether the host of a URL is a loopback name or address."""
    name = host.lower().removesuffix(".")
    address = _address(name)
    return _is_loopback(name) or (address is not None and address.is_unspecified)


def _name(host: str) -> str | None:
    """Return a host in normal form: lower case, no final dot, addresses as `ipaddress` writes them."""
    if host.startswith("["):
        address = _address(host[1:-1])
        return str(address) if isinstance(address, IPv6Address) else None
    name = host.lower().removesuffix(".")
    return name or None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _normal(entry: str) -> str:
    """Return a configured name in the form of `_name`, with `:PORT` if it has one."""
    if _address(entry) is not None:
        return str(_address(entry))
    found = _AUTHORITY.fullmatch(entry.encode("utf-8", "replace"))
    if found is None:
        return entry
    name = _name(found[1].decode("ascii")) or entry
    return f"{name}:{found[2].decode('ascii')}" if found[2] else name
