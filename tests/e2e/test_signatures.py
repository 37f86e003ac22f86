"""Signatures of answers: HTTP message signatures (RFC 9421), and a JWS in `_meta` (RFC 7515)."""

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import jwt
import pytest
import rfc8785
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from e2e.stores import process
from kit.beside import Rig, proxy_beside
from kit.clients import MCP_HEADERS, call, message
from kit.proxy import rows
from kit.upstreams import Peer, RawUpstream, answer, ok, result, text_result

# Its types are incomplete.
rfc9421: Any = import_module("http_message_signatures")
algorithms: Any = import_module("http_message_signatures.algorithms")
MADE = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()
CURVE = ec.generate_private_key(ec.SECP256R1())
SECRET = b"a shared secret of 32 bytes or so"
BODY = json.dumps(text_result(1, "done")).encode()
TOOLS = result(1, {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]})
META = "com.example/jws"


def public(key: Any) -> bytes:
    """Return the public half of a key as PEM."""
    made: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return made


class Signed:
    """An answer as the signing library sees it."""

    def __init__(self, body: bytes, url: str = "") -> None:
        self.status_code = 200
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        self.headers = {
            "Content-Type": "application/json",
            "Content-Digest": f"sha-256=:{digest}:",
        }
        self.request = Request(url)


class Request:
    """The request that it answers."""

    def __init__(self, url: str) -> None:
        self.method, self.url, self.headers = "POST", url, dict[str, str]()


def signed(
    body: bytes,
    *,
    key: Any = MADE,
    name: str = "bank",
    algorithm: Any = algorithms.ED25519,
    covered: tuple[str, ...] = ("@status", "content-digest"),
    url: str = "",
    sent: bytes | None = None,
    **times: Any,
) -> bytes:
    """Return an answer with a signature of `body`, or of `sent` with the head of `body`."""
    made = Signed(body, url)
    signer = rfc9421.HTTPMessageSigner(
        signature_algorithm=algorithm,
        key_resolver=rfc9421.MappingKeyResolver(public_keys={}, private_keys={name: key}),
    )
    signer.sign(made, key_id=name, covered_component_ids=covered, use_existing_digest=True, **times)
    headers = "".join(f"{n}: {v}\r\n" for n, v in made.headers.items() if n != "Content-Type")
    return ok(body if sent is None else sent, headers=headers)


def with_jws(body: dict[str, Any], *, key: Any = MADE, alg: str = "EdDSA", **head: Any) -> bytes:
    """Return a response with a JWS of its result."""
    payload = rfc8785.dumps(body["result"])
    token = jwt.PyJWS().encode(payload, key, algorithm=alg, headers=head)
    first, _, last = token.split(".")
    meta = {**body["result"].get("_meta", {}), META: f"{first}..{last}"}
    return json.dumps({**body, "result": {**body["result"], "_meta": meta}}).encode()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Rig]:
    """A proxy that has keys of its upstream, whose tool is pinned."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "bank.pem").write_bytes(public(MADE))
    (folder / "curve.pem").write_bytes(public(CURVE))
    (folder / "secret").write_bytes(SECRET + b"\n")
    with RawUpstream() as upstream:
        bank = {
            "url": upstream.url,
            "signatures": {
                "keys": [
                    {"id": "bank", "alg": "ed25519", "file": "bank.pem"},
                    {"id": "curve", "alg": "ecdsa-p256-sha256", "file": "curve.pem"},
                    {"id": "shared", "alg": "hmac-sha256", "file": "secret"},
                ],
                "max_age": "1h",
            },
            "jws": {
                "meta": META,
                "keys": [
                    {"id": "bank", "alg": "EdDSA", "file": "bank.pem"},
                    {"id": "curve", "alg": "ES256", "file": "curve.pem"},
                    {"id": "shared", "alg": "HS256", "file": "secret"},
                ],
            },
        }
        with proxy_beside(folder, settings={"upstreams": {"bank": bank}}) as proxy:
            rig = Rig(upstream, proxy)
            upstream.script = answer(ok(json.dumps(TOOLS).encode()))
            with rig.client() as client:
                client.request("POST", "/mcp", message("tools/list", {}), headers=MCP_HEADERS)
            config = str(folder / "settings.yaml")
            assert (
                process("trust", "--yes", "--config", config, "--data", str(proxy.data)).returncode
                == 0
            )
            proxy.told("lock.loaded")
            yield rig


@pytest.fixture(autouse=True)
def fresh(keyed: Rig) -> None:
    keyed.fresh()


def provenance(rig: Rig, raw: bytes | Callable[[Peer], None]) -> str | None:
    """Answer a call with these bytes; return the provenance in its row."""
    rig.upstream.script = answer(raw) if isinstance(raw, bytes) else raw
    with rig.client() as client:
        client.request("POST", rig.path, call("pay"), headers=MCP_HEADERS)
    row = rig.row()
    if row.provenance == "mismatch":
        assert isinstance(row.provenance_reasons, list)
        assert all(reason.startswith("result: ") for reason in row.provenance_reasons)
    assert ("unverified" in row.flags) == (row.provenance == "mismatch")
    assert row.status == "ok"
    return row.provenance


SIGNED = [
    signed(BODY),
    signed(BODY, key=CURVE, name="curve", algorithm=algorithms.ECDSA_P256_SHA256),
    signed(BODY, key=SECRET, name="shared", algorithm=algorithms.HMAC_SHA256),
    signed(BODY, expires=datetime.now(UTC) + timedelta(hours=1)),
]


@pytest.mark.promise("PROV-10")
@pytest.mark.parametrize("raw", SIGNED)
def test_a_result_whose_signature_holds_is_verified(keyed: Rig, raw: bytes) -> None:
    assert provenance(keyed, raw) == "verified"


BADLY_SIGNED = [
    signed(BODY, key=OTHER),
    signed(BODY, sent=BODY.replace(b"done", b"gone")),
    signed(BODY, covered=("@status",)),
    signed(BODY, created=datetime.now(UTC) - timedelta(hours=2)),
    signed(
        BODY,
        created=datetime.now(UTC) - timedelta(minutes=9),
        expires=datetime.now(UTC) - timedelta(minutes=8),
    ),
    signed(BODY).replace(b"ed25519", b"ed2551x"),
]


@pytest.mark.promise("PROV-10")
@pytest.mark.parametrize("raw", BADLY_SIGNED)
def test_a_result_whose_signature_fails_is_a_mismatch_and_passes(keyed: Rig, raw: bytes) -> None:
    assert provenance(keyed, raw) == "mismatch"


@pytest.mark.parametrize("raw", [ok(BODY), signed(BODY, key=OTHER, name="other")])
def test_an_answer_without_a_signature_by_a_known_key_is_not_verified(
    keyed: Rig, raw: bytes
) -> None:
    assert provenance(keyed, raw) == "pinned"


def test_of_several_signatures_those_by_known_keys_count(keyed: Rig) -> None:
    made, other = Signed(BODY), Signed(BODY)
    for each, key, name in ((made, MADE, "bank"), (other, OTHER, "other")):
        rfc9421.HTTPMessageSigner(
            signature_algorithm=algorithms.ED25519,
            key_resolver=rfc9421.MappingKeyResolver(public_keys={}, private_keys={name: key}),
        ).sign(
            each,
            key_id=name,
            label=name,
            covered_component_ids=("content-digest",),
            use_existing_digest=True,
        )
    headers = "".join(
        f"{name}: {made.headers[name]}, {other.headers[name]}\r\n"
        for name in ("Signature", "Signature-Input")
    )
    digest = f"Content-Digest: {made.headers['Content-Digest']}\r\n"
    assert provenance(keyed, ok(BODY, headers=digest + headers)) == "verified"


@pytest.mark.parametrize(("path", "expected"), [("/mcp", "verified"), ("/other", "mismatch")])
def test_a_signature_may_cover_the_request(keyed: Rig, path: str, expected: str) -> None:
    url = keyed.upstream.origin + path
    covered = ("content-digest", '"@method";req', '"@target-uri";req')
    assert provenance(keyed, signed(BODY, covered=covered, url=url)) == expected


@pytest.mark.promise("PROV-11")
@pytest.mark.parametrize("meta", [{}, {"_meta": {"a": 1.50}}])
@pytest.mark.parametrize(
    ("key", "alg", "head"),
    [(MADE, "EdDSA", {"kid": "bank"}), (MADE, "EdDSA", {}), (SECRET, "HS256", {"kid": "shared"})],
)
def test_a_result_whose_jws_holds_is_verified(
    keyed: Rig, meta: dict[str, Any], key: Any, alg: str, head: dict[str, Any]
) -> None:
    body = text_result(1, "d\u00f6ne")
    assert isinstance(body["result"], dict)
    body["result"] |= meta
    assert provenance(keyed, ok(with_jws(body, key=key, alg=alg, **head))) == "verified"


WITH_JWS = with_jws(text_result(1, "done"), kid="bank")
BAD_JWS = [
    WITH_JWS.replace(b'"done"', b'"gone"'),
    with_jws(text_result(1, "done"), key=OTHER, kid="bank"),
    with_jws(text_result(1, "done"), key=OTHER),
    with_jws(text_result(1, "done"), key=SECRET, alg="HS256", kid="bank"),
    json.dumps(result(1, {"content": [], "_meta": {META: 5}})).encode(),
    json.dumps(result(1, {"content": [], "_meta": {META: "a.b.c"}})).encode(),
    json.dumps(result(1, {"content": [], "_meta": {META: "no..jws"}})).encode(),
]


@pytest.mark.promise("PROV-11")
@pytest.mark.parametrize("body", BAD_JWS)
def test_a_result_whose_jws_fails_is_a_mismatch(keyed: Rig, body: bytes) -> None:
    assert provenance(keyed, ok(body)) == "mismatch"


def test_a_jws_by_another_key_says_nothing(keyed: Rig) -> None:
    body = with_jws(text_result(1, "done"), key=OTHER, kid="other")
    assert provenance(keyed, ok(body)) == "pinned"


@pytest.mark.parametrize(("said", "expected"), [("done", "verified"), ("gone", "mismatch")])
def test_the_jws_of_a_result_in_an_event_is_verified(keyed: Rig, said: str, expected: str) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send_event(json.loads(WITH_JWS.replace(b'"done"', b'"%b"' % said.encode())))
        peer.end()

    assert provenance(keyed, script) == expected


def test_a_signature_and_a_jws_are_both_verified(keyed: Rig) -> None:
    assert provenance(keyed, signed(WITH_JWS)) == "verified"
    keyed.fresh()
    assert provenance(keyed, signed(WITH_JWS, key=OTHER)) == "mismatch"


@pytest.mark.promise("PROV-11")
@pytest.mark.parametrize(("said", "expected"), [("done", "unverified"), ("gone", "mismatch")])
def test_the_jws_of_a_wrapped_command_is_verified(tmp_path: Path, said: str, expected: str) -> None:
    (tmp_path / "bank.pem").write_bytes(public(MADE))
    keys = [{"id": "bank", "alg": "EdDSA", "file": "bank.pem"}]
    upstream = {"command": ["server"], "jws": {"meta": META, "keys": keys}}
    config = tmp_path / "turnlog.yaml"
    config.write_text(json.dumps({"upstreams": {"server": upstream}}))
    raw = WITH_JWS.replace(b'"done"', b'"%b"' % said.encode())
    program = tmp_path / "server.py"
    program.write_text(f"input()\nprint({raw.decode()!r}, flush=True)\n")
    data, options = tmp_path / "data", ("--config", str(config), "--name", "server")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "turnlog",
            "wrap",
            *options,
            "--data",
            str(data),
            "--",
            sys.executable,
            str(program),
        ],
        input=call("pay") + b"\n",
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == raw + b"\n"
    (row,) = rows(data)
    assert row.provenance == expected
    assert ("unverified" in row.flags) == (expected == "mismatch")


DEMAND = "rules: [{match: {tool: pay}, provenance: {result: verified, then: surface}}]"


@pytest.mark.promise("PROV-20")
def test_a_rule_makes_an_error_of_a_result_whose_signature_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "bank.pem").write_bytes(public(MADE))
    (tmp_path / "rules.yaml").write_text(DEMAND)
    keys = {"keys": [{"id": "bank", "alg": "ed25519", "file": "bank.pem"}]}
    seen: list[tuple[str, str | None, bool]] = []
    with RawUpstream() as upstream:
        bank = {"url": upstream.url, "signatures": keys}
        settings = {"upstreams": {"bank": bank}, "rules": ["rules.yaml"]}
        with proxy_beside(tmp_path, settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            for raw in (signed(BODY), ok(BODY), signed(BODY, key=OTHER)):
                rig.fresh()
                upstream.script = answer(raw)
                with rig.client() as client:
                    got = client.request("POST", rig.path, call("pay"), headers=MCP_HEADERS)
                row = rig.row()
                assert got.head.one("turnlog-status") == row.status
                seen.append((row.status, row.kind, got.body == BODY))
    unverified = "unverified_provenance"
    # What has a digest or a signature is not edited; its head says that it is an error.
    assert seen == [("ok", None, True), ("error", unverified, False), ("error", unverified, True)]
