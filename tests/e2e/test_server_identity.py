"""The identity of a server: pinned with its tools, and what a call says when it is another one."""

import hashlib
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from e2e.stores import Done, process
from kit.beside import proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.proxy import Proxy, rows
from kit.upstreams import Peer, RawUpstream, result, text_result
from turnlog.packs.lock import LockFile, read_lock, write_lock
from turnlog.sessions.rows import Row
from turnlog.store import definitions

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                      "serverInfo": {"name": "bank", "version": "1.0"}}
        case "tools/list":
            result = {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "done"}]}
        case _:
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}),
    ("tools/list", {}),
    ("tools/call", {"name": "pay", "arguments": {}}),
]
SESSIONS = count()


class Bank:
    """A server that says what it is."""

    def __init__(self) -> None:
        self.info: dict[str, str] = {"name": "bank", "version": "1.0"}
        self.revision = "2025-06-18"

    def __call__(self, peer: Peer) -> None:
        """Answer one request of MCP."""
        peer.send_json(self.answer(peer.read().json()))

    def answer(self, asked: dict[str, Any]) -> dict[str, object]:
        match asked["method"]:
            case "initialize":
                capabilities: dict[str, object] = {"tools": {}}
                said = {"protocolVersion": self.revision, "capabilities": capabilities}
                return result(asked["id"], {**said, "serverInfo": self.info})
            case "server/discover":
                meta = {"io.modelcontextprotocol/serverInfo": self.info}
                return result(asked["id"], {"resultType": "complete", "_meta": meta})
            case "tools/list":
                tool = {"name": "pay", "inputSchema": {"type": "object"}}
                return result(asked["id"], {"tools": [tool]})
            case _:
                return text_result(asked["id"], "done")


class Desk:
    """A proxy before such a server, and the command line beside it."""

    def __init__(self, folder: Path, proxy: Proxy) -> None:
        self.folder = folder
        self.proxy = proxy

    def play(self, opening: str = "initialize") -> Row:
        """Let an agent begin, list the tools and call one; return the row of the call."""
        session = f"s{next(SESSIONS)}"
        url = self.proxy.urls[0]
        path = f"/s/{session}/" + url.split("/", 3)[3]
        info = {"name": "agent", "version": "1"}
        asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        with Client(url) as client:
            opened = client.request("POST", path, message(opening, asked), headers=MCP_HEADERS)
            given = opened.head.one("mcp-session-id")
            headers = (*MCP_HEADERS, *([("Mcp-Session-Id", given)] if given else []))
            client.request("POST", path, message("tools/list", {}, request_id=2), headers=headers)
            client.request("POST", path, call("pay", request_id=3), headers=headers)
        return ended(self.proxy.data, session)

    def shown(self, **parts: str) -> None:
        """Wait until these parts of the server were written down."""

        def is_shown() -> bool:
            seen = definitions.servers(self.proxy.data).values()
            return any(parts.items() <= one.parts.items() for one in seen)

        wait_until(is_shown, f"{parts} are written down")

    def trust(self, *arguments: str) -> Done:
        config = str(self.folder / "settings.yaml")
        return process("trust", *arguments, "--config", config, "--data", str(self.proxy.data))

    def pin(self) -> None:
        """Pin what was shown, and wait until the proxy has read that."""
        before = len(self.proxy.events("lock.loaded"))
        done = self.trust("--yes")
        assert done.returncode == 0, done.stderr
        self.proxy.told("lock.loaded", before + 1)

    def servers(self) -> list[dict[str, Any]]:
        """Return what `turnlog trust` says of servers."""
        done = self.trust("--check", "--json")
        found = map(json.loads, done.stdout.splitlines())
        return [line for line in found if "tool" not in line]

    @property
    def lock(self) -> Path:
        return self.folder / "turnlog.lock"


def desk(folder: Path, upstream: Mapping[str, object], **settings: object) -> Any:
    """Return the context of a proxy before one upstream, as `proxy_beside` does."""
    return proxy_beside(folder, settings={"upstreams": {"bank": upstream}, **settings})


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def here(tmp_path: Path, bank: Bank) -> Generator[Desk]:
    with RawUpstream(bank) as upstream, desk(tmp_path, {"url": upstream.url}) as proxy:
        yield Desk(tmp_path, proxy)


def ended(data: Path, session: str) -> Row:
    """Wait until the only call of a session has ended; return its row."""
    wait_until(
        lambda: [row.status == "pending" for row in session_rows(data, session)] == [False],
        "the call ends",
    )
    (row,) = session_rows(data, session)
    return row


def is_mismatch(row: Row) -> bool:
    return (row.provenance, row.flags, row.status) == ("mismatch", ["unverified"], "ok")


@pytest.mark.promise("PROV-17")
def test_a_server_of_another_version_is_a_mismatch_until_it_is_pinned(
    here: Desk, bank: Bank
) -> None:
    assert here.play().provenance == "unverified"
    here.shown(name="bank", version="1.0")
    here.pin()
    row = here.play()
    assert (row.provenance, row.flags) == ("pinned", [])
    assert here.trust("--check").returncode == 0

    bank.info = {"name": "bank", "version": "1.1"}
    row = here.play()
    assert is_mismatch(row)
    assert row.provenance_reasons == ["server: version changed"]
    shown = process("show", row.call, "--data", str(here.proxy.data)).stdout
    assert "mismatch; server: version changed\n" in shown
    here.shown(version="1.1")
    checked = here.trust("--check")
    assert checked.returncode == 1
    assert checked.stdout == "bank  server changed: version\n-version: 1.0\n+version: 1.1\n\n"
    assert "1 changed server against" in checked.stderr
    (line,) = here.servers()
    assert (line["server"], line["change"], line["parts"]) == ("bank", "changed", ["version"])
    assert (line["pinned"]["version"], line["shown"]["version"]) == ("1.0", "1.1")

    here.pin()
    assert here.play().provenance == "pinned"


def changed(proxy: Proxy, count: int = 1) -> list[tuple[Any, ...]]:
    """Wait for the changes of servers in the log of a proxy; return their parts, old and new, and the verdict."""
    fields = ("parts", "before", "now", "provenance")
    events = proxy.told("server.changed", count)
    assert all(event["turnlog.server"] == "bank" for event in events)
    return [tuple(event[f"turnlog.{field}"] for field in fields) for event in events]


@pytest.mark.promise("PROV-17")
def test_a_change_of_a_server_is_logged_once(here: Desk, bank: Bank) -> None:
    here.play()
    here.shown(version="1.0")
    bank.info = {"name": "bank", "version": "1.1"}
    here.play()
    newer = (["version"], ["1.0"], ["1.1"], "unverified")
    assert changed(here.proxy) == [newer]
    here.pin()
    here.play()
    here.play()
    bank.info = {"name": "tank", "version": "1.2"}
    other = (["name", "version"], ["bank", "1.1"], ["tank", "1.2"], "mismatch")
    here.play()
    here.play()
    bank.info = {"name": "bank", "version": "1.1"}
    here.play()
    back = (["name", "version"], ["tank", "1.2"], ["bank", "1.1"], "pinned")
    assert changed(here.proxy, 3) == [newer, other, back]


@pytest.mark.promise("PROV-17")
def test_a_new_data_folder_compares_a_server_with_the_lock(tmp_path: Path, bank: Bank) -> None:
    lock = "turnlog.lock"
    folders = [tmp_path / name for name in ("first", "newer", "moved")]
    for folder in folders:
        folder.mkdir()
    with RawUpstream(bank) as upstream:
        with desk(folders[0], {"url": upstream.url}) as proxy:
            first = Desk(folders[0], proxy)
            first.play()
            first.shown(version="1.0")
            first.pin()
            assert proxy.events("server.changed") == []
        bank.info = {"name": "bank", "version": "1.1"}
        (folders[1] / lock).write_bytes(first.lock.read_bytes())
        with desk(folders[1], {"url": upstream.url}) as proxy:
            Desk(folders[1], proxy).play()
            assert changed(proxy) == [(["version"], ["1.0"], ["1.1"], "mismatch")]
        pinned = upstream.origin
    with RawUpstream(bank) as upstream:
        (folders[2] / lock).write_bytes(first.lock.read_bytes())
        with desk(folders[2], {"url": upstream.url}) as proxy:
            Desk(folders[2], proxy).play()
            parts = (["target", "version"], [pinned, "1.0"], [upstream.origin, "1.1"])
            assert changed(proxy) == [(*parts, "mismatch")]


@pytest.mark.promise("PROV-17")
def test_a_server_that_calls_itself_otherwise_says_so_when_it_is_discovered(
    here: Desk, bank: Bank
) -> None:
    here.play("server/discover")
    here.shown(name="bank", version="1.0")
    here.pin()
    bank.info = {"name": "tank", "version": "1.0"}
    assert is_mismatch(here.play("server/discover"))


@pytest.mark.promise("PROV-17")
def test_a_server_at_another_target_is_a_mismatch(tmp_path: Path, bank: Bank) -> None:
    with RawUpstream(bank) as upstream, desk(tmp_path, {"url": upstream.url}) as proxy:
        here = Desk(tmp_path, proxy)
        here.play()
        here.shown(version="1.0")
        here.pin()
        first = upstream.origin
    with RawUpstream(bank) as upstream, desk(tmp_path, {"url": upstream.url}) as proxy:
        here = Desk(tmp_path, proxy)
        row = here.play()
        assert (row.provenance, row.flags) == ("mismatch", ["unverified"])
        here.shown(target=upstream.origin)
        (line,) = [line for line in here.servers() if line["change"] == "changed"]
        assert (line["change"], line["parts"]) == ("changed", ["target"])
        assert line["diff"][:2] == [f"-target: {first}", f"+target: {upstream.origin}"]
        here.pin()
        assert here.play().provenance == "pinned"


def test_a_lock_without_servers_stays_valid(here: Desk, bank: Bank) -> None:
    here.play()
    here.shown(version="1.0")
    here.pin()
    write_lock(here.lock, LockFile(servers=read_lock(here.lock).servers))
    assert '"identities"' not in here.lock.read_text()
    here.proxy.told("lock.loaded", 2)
    bank.info = {"name": "bank", "version": "2.0"}
    row = here.play()
    assert (row.provenance, row.flags) == ("pinned", [])
    checked = here.trust("--check")
    assert checked.returncode == 0
    assert "server new: target, name, version" in checked.stdout


def test_what_a_server_says_of_itself_never_controls_the_terminal(here: Desk, bank: Bank) -> None:
    bank.info = {"name": "bank", "version": "1\x1b[2J\u202e" + "x" * 1000}
    here.play()
    wait_until(lambda: here.servers() != [], "it is written down")
    shown = here.trust("--check").stdout
    assert "+version: 1\\u001b[2J\\u202exxx" in shown
    assert "x" * 257 not in shown
    assert here.trust("--yes").returncode == 0
    for text in (shown, here.lock.read_text("utf-8")):
        assert not {"\x1b", "\u202e"} & set(text)


def test_the_pin_of_a_single_tool_leaves_its_server(here: Desk) -> None:
    here.play()
    here.shown(version="1.0")
    assert here.trust("--yes", "bank/pay").returncode == 0
    assert read_lock(here.lock).identities == {}


@pytest.mark.promise("PROV-18")
def test_a_rule_that_demands_a_pinned_tool_refuses_another_server(
    tmp_path: Path, bank: Bank
) -> None:
    (tmp_path / "rules.yaml").write_text("rules:\n  - {match: {tool: pay}, provenance: pinned}\n")
    with (
        RawUpstream(bank) as upstream,
        desk(tmp_path, {"url": upstream.url}, rules=["rules.yaml"]) as proxy,
    ):
        here = Desk(tmp_path, proxy)
        refused = here.play()
        assert (refused.kind, refused.executed) == ("unverified_provenance", "no")
        here.shown(version="1.0")
        here.pin()
        assert here.play().status == "ok"
        bank.info = {"name": "bank", "version": "1.1"}
        refused = here.play()
        assert (refused.kind, refused.executed) == ("unverified_provenance", "no")
        shown = process("show", refused.call, "--data", str(proxy.data)).stdout
        assert "the server 'bank' has changed since it was pinned: version" in shown


def certified(file: Path, key: ec.EllipticCurvePrivateKey, authority: Path) -> None:
    """Write a key with a certificate of its own, for 127.0.0.1, to a file, and the latter to another."""
    now, name = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file.name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(private + made)
    with authority.open("ab") as certificates:
        certificates.write(made)


@contextmanager
def secured(bank: Bank, context: ssl.SSLContext) -> Generator[str]:
    """Run a server that says what `bank` says, over TLS and with a connection for each request; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(bank.answer(asked)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - its name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}/mcp"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.promise("PROV-17")
def test_a_server_with_another_tls_key_is_a_mismatch(tmp_path: Path, bank: Bank) -> None:
    authority = tmp_path / "ca.pem"
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    for file, key in (("first", keys[0]), ("renewed", keys[0]), ("other", keys[1])):
        certified(tmp_path / file, key, authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "first")
    with secured(bank, context) as url:
        settings = {"url": url, "ca": str(authority), "pin_tls": True}
        with desk(tmp_path, settings) as proxy:
            here = Desk(tmp_path, proxy)
            here.play()
            here.shown(version="1.0")
            here.pin()
            info = (
                keys[0]
                .public_key()
                .public_bytes(
                    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
            (pinned,) = read_lock(here.lock).identities.values()
            assert pinned.tls_key == f"sha256:{hashlib.sha256(info).hexdigest()}"
            context.load_cert_chain(tmp_path / "renewed")
            row = here.play()
            assert (row.status, row.provenance) == ("ok", "pinned")
            context.load_cert_chain(tmp_path / "other")
            assert is_mismatch(here.play())
            wait_until(lambda: here.trust("--check").returncode == 1, "the key is written down")
            (line,) = here.servers()
            assert (line["change"], line["parts"]) == ("changed", ["TLS key"])
            ((parts, (before,), _, provenance),) = changed(proxy)
            assert (parts, before, provenance) == (["TLS key"], pinned.tls_key, "mismatch")


@pytest.mark.promise("PROV-17")
def test_a_server_of_plain_http_tools_is_pinned_by_its_tls_key(tmp_path: Path, bank: Bank) -> None:
    authority = tmp_path / "ca.pem"
    for file in ("first", "other"):
        certified(tmp_path / file, ec.generate_private_key(ec.SECP256R1()), authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "first")
    with secured(bank, context) as url:
        settings = {"url": url, "ca": str(authority), "pin_tls": True, "transport": "http"}
        with desk(tmp_path, settings) as proxy:
            here = Desk(tmp_path, proxy)

            def pay() -> Row:
                session = f"s{next(SESSIONS)}"
                with Client(proxy.url) as client:
                    client.request("POST", f"/s/{session}/pay", call("pay"))
                return ended(proxy.data, session)

            assert pay().provenance == "unverified"
            wait_until(lambda: here.servers() != [], "the key is written down")
            here.pin()
            assert pay().flags == []
            assert "the servers are as pinned" in here.trust("--check", "bank").stderr
            context.load_cert_chain(tmp_path / "other")
            row = pay()
            assert is_mismatch(row)
            assert isinstance(row.provenance_reasons, list)
            assert "server: TLS key changed" in row.provenance_reasons


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A program that is a server of MCP."""
    program = tmp_path / "bank-server"
    program.write_text(f"#!{sys.executable}\n{SERVER}")
    program.chmod(0o755)
    return program


@pytest.mark.promise("PROV-17")
def test_a_command_with_another_program_is_a_mismatch(tmp_path: Path, command: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(command)
    with desk(tmp_path, {"command": [str(link)]}) as proxy:
        here = Desk(tmp_path, proxy)
        here.play()
        digest = hashlib.sha256(command.read_bytes()).hexdigest()
        parts = {"program": str(command), "program digest": f"sha256:{digest}", "name": "bank"}
        here.shown(**parts)
        here.pin()
        assert here.play().provenance == "pinned"

        with command.open("a") as program:
            program.write("# changed\n")
        here.play()  # a new session has a process of its own
        here.shown(**{"program digest": f"sha256:{sha256_of(command)}"})
        assert is_mismatch(here.play())
        (line,) = here.servers()
        assert (line["change"], line["parts"]) == ("changed", ["program digest"])


@pytest.mark.promise("PROV-17")
def test_a_wrapped_command_with_another_program_is_a_mismatch(
    tmp_path: Path, command: Path
) -> None:
    data = tmp_path / "data"
    assert wrapped(command, data).provenance == "unverified"
    assert process("trust", "--yes", "--data", str(data)).returncode == 0
    assert wrapped(command, data).provenance == "pinned"
    with command.open("a") as program:
        program.write("# changed\n")
    assert is_mismatch(wrapped(command, data))


def wrapped(command: Path, data: Path) -> Row:
    """Let an agent start a command through turnlog and call its tool; return the row of the call."""
    arguments = [sys.executable, "-m", "turnlog", "wrap", "--data", str(data), "--", str(command)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        for number, (method, params) in enumerate(ASKED):
            if method == "tools/call":
                wait_until(lambda: is_written_down(data, command), "the program is written down")
            running.stdin.write(message(method, params, request_id=number) + b"\n")
            running.stdin.flush()
            assert json.loads(running.stdout.readline())["id"] == number
        running.stdin.close()
        assert running.wait(60) == 0
    return rows(data)[-1]


def is_written_down(data: Path, command: Path) -> bool:
    digest = f"sha256:{sha256_of(command)}"
    return any(one.program_digest == digest for one in definitions.servers(data).values())


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
