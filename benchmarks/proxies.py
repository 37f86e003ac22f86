"""Every proxy that a run can put between the load generator and the upstream.

A starter returns the running proxy, or `None` if it is not installed.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field
from msgspec.json import Decoder

from .children import Child, Children, StartError, accepts, free_port

ENVIRONMENTS = Path(__file__).resolve().parent / ".env"

_NGINX = """
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 100000000;
    client_max_body_size 0;
    upstream tools {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://tools;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_buffer_size 64k;
            proxy_buffers 4 64k;
            proxy_busy_buffers_size 128k;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""
# With annotations trusted, `read_*` tools are reads and those without annotations are writes, whose
# repeats are guarded; of `write_*` nobody is to know what they do.
_TURNLOG = """
upstreams:
  bench: {{url: "http://127.0.0.1:{upstream}/mcp", trust_annotations: true}}
rules: [{rules}]
provenance: {{inputs: {inputs}}}
"""
_RULES = """
rules:
  - {name: nobody-knows, match: {tool: write_*}, effect: unknown}
"""


class Running(Struct, frozen=True):
    """A proxy that accepts calls. `child` is `None` for no proxy at all."""

    name: str
    url: str
    child: Child | None = None


class Place(Struct, frozen=True):
    """What a starter needs: the upstream's port, who starts processes, where files may lie."""

    upstream: int
    children: Children
    folder: Path

    @property
    def origin(self) -> str:
        """The upstream's scheme, host and port."""
        return f"http://127.0.0.1:{self.upstream}"


class Ready(Struct, frozen=True):
    """A line of turnlog's log, as far as it is looked at."""

    event: str = ""
    urls: tuple[str, ...] = field(name="turnlog.urls", default=())


def local(port: int) -> str:
    """Return the MCP URL on `port`."""
    return f"http://127.0.0.1:{port}/mcp"


def direct(place: Place) -> Running:
    """No proxy."""
    return Running("direct", local(place.upstream))


def bare(place: Place) -> Running:
    """The bare aiohttp proxy."""
    child = place.children.start_own("bare-aiohttp", "bare_aiohttp", place.origin)
    return Running("bare aiohttp", local(child.port()), child)


def nginx(place: Place) -> Running | None:
    """The nginx of `BENCH_NGINX`, else of the path, in one process."""
    binary = os.environ.get("BENCH_NGINX") or shutil.which("nginx")
    if not binary:
        return None
    port, folder = free_port(), place.folder / "nginx"
    folder.mkdir()
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, upstream=place.upstream, port=port))
    child = place.children.start("nginx", binary, "-p", folder, "-c", config, "-e", "stderr")
    child.wait(lambda: accepts(port))
    return Running("nginx", local(port), child)


def turnlog(place: Place) -> Running | None:
    """turnlog as a user starts it, with its log in a file and the disk under its data."""
    return _turnlog(place, place.folder, "turnlog", "on")


def without_inputs(place: Place) -> Running | None:
    """The same, but it does not find out where inputs came from."""
    return _turnlog(place, place.folder / "inputs-off", "turnlog, inputs off", "off")


def _turnlog(place: Place, folder: Path, name: str, inputs: str) -> Running | None:
    if not command().exists():
        return None
    folder.mkdir(exist_ok=True)
    config, rules = folder / "turnlog.yaml", folder / "rules.yaml"
    rules.write_text(_RULES)
    config.write_text(_TURNLOG.format(upstream=place.upstream, rules=rules, inputs=inputs))
    return start_turnlog(place.children, config, folder / "data", name)


def command() -> Path:
    """Return where the `turnlog` of this Python is."""
    return Path(sys.executable).parent / "turnlog"


def start_turnlog(children: Children, config: Path, data: Path, name: str = "turnlog") -> Running:
    """Start turnlog on a free port and wait until it says that it is ready."""
    child = children.start(
        name, command(), "serve", "--config", config, "--listen", "127.0.0.1:0", "--data", data
    )
    child.wait(lambda: b'"proxy.ready"' in child.output())
    return Running(name, ready_url(child.output()), child)


def ready_url(output: bytes) -> str:
    """Return the URL that the line `proxy.ready` names. Raises `StartError` without one."""
    decoder = Decoder(Ready)
    for line in output.splitlines():
        ready = decoder.decode(line)
        if ready.event == "proxy.ready" and ready.urls:
            return ready.urls[0]
    raise StartError("turnlog printed no URL with its event proxy.ready")


def peer(environment: str, program: str) -> Path | None:
    """Return a program of a peer's own environment, `None` if that was not installed."""
    path = ENVIRONMENTS / environment / "bin" / program
    return path if path.exists() else None


def mitmproxy(place: Place) -> Running | None:
    """mitmproxy in reverse mode."""
    program = peer("mitmproxy", "mitmdump")
    if not program:
        return None
    port = free_port()
    options = ("--quiet", "--listen-host", "127.0.0.1", "--listen-port", str(port))
    child = place.children.start(
        "mitmproxy", program, "--mode", f"reverse:{place.origin}", *options
    )
    child.wait(lambda: accepts(port))
    return Running("mitmproxy", local(port), child)


def mcp_proxy(place: Place) -> Running | None:
    """mcp-proxy, which fronts a command: the same upstream over stdin and stdout."""
    program = peer("mcp-proxy", "mcp-proxy")
    if not program:
        return None
    port = free_port()
    serve = (program, "--port", str(port), "--stateless", "--log-level", "ERROR", "--")
    upstream = (sys.executable, "-m", "benchmarks.upstream", "--stdio")
    child = place.children.start("mcp-proxy", *serve, *upstream)
    child.wait(lambda: accepts(port))
    return Running("mcp-proxy", local(port), child)


def fastmcp(kind: str) -> Callable[[Place], Running | None]:
    """Return a starter of fastmcp's proxy with a `reused` client or as it is by `default`."""

    def start(place: Place) -> Running | None:
        program = peer("fastmcp", "python")
        if not program:
            return None
        port = free_port()
        script = Path(__file__).parent / "peers" / "fastmcp_proxy.py"
        url = local(place.upstream)
        name = f"fastmcp-{kind}"
        child = place.children.start(name, program, script, url, str(port), kind)
        child.wait(lambda: accepts(port))
        return Running(f"fastmcp {kind}", local(port), child)

    return start


Starter = Callable[[Place], Running | None]

MAIN: dict[str, Starter] = {
    "direct": direct,
    "bare aiohttp": bare,
    "nginx": nginx,
    "turnlog": turnlog,
    "turnlog, inputs off": without_inputs,
}
PEERS: dict[str, Starter] = {
    "mitmproxy": mitmproxy,
    "mcp-proxy": mcp_proxy,
    "fastmcp reused": fastmcp("reused"),
    "fastmcp default": fastmcp("default"),
}
