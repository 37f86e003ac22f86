"""Keys of signatures in a configuration."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from turnlog.packs.errors import ConfigError
from turnlog.settings import signatures
from turnlog.settings.layers import Flags, read_settings
from turnlog.settings.model import UpstreamSettings

SECRET = b"a shared secret of 32 bytes or so"


def write_public(folder: Path, name: str, key: Any) -> None:
    made = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / name).write_bytes(made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_public(tmp_path, "ed.pem", ed25519.Ed25519PrivateKey.generate())
    write_public(tmp_path, "curve.pem", ec.generate_private_key(ec.SECP256R1()))
    write_public(tmp_path, "rsa.pem", rsa.generate_private_key(65537, 2048))
    write_public(tmp_path, "short.pem", rsa.generate_private_key(65537, 1024))
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    (tmp_path / "text").write_text("no key")
    (tmp_path / "large").write_bytes(bytes(signatures.LARGEST + 1))
    return tmp_path


def upstream(folder: Path, where: str = "url", /, **sections: object) -> UpstreamSettings:
    """Return an upstream of a configuration file in a folder. Raises `ConfigError`."""
    server = {"url": "http://127.0.0.1:9/mcp"} if where == "url" else {"command": ["server"]}
    file = folder / "turnlog.yaml"
    file.write_text(json.dumps({"upstreams": {"bank": {**server, **sections}}}, indent=2))
    settings = read_settings(Flags(config=str(file)), {}, folder.parent)
    return settings.upstreams["bank"]


def key(alg: str, file: str) -> dict[str, object]:
    return {"keys": [{"id": "a", "alg": alg, "file": file}]}


@pytest.mark.parametrize(
    ("section", "alg", "file"),
    [
        ("signatures", "ed25519", "ed.pem"),
        ("signatures", "ecdsa-p256-sha256", "curve.pem"),
        ("signatures", "rsa-pss-sha512", "rsa.pem"),
        ("signatures", "hmac-sha256", "secret"),
        ("jws", "EdDSA", "ed.pem"),
        ("jws", "ES256", "curve.pem"),
        ("jws", "PS256", "rsa.pem"),
        ("jws", "HS256", "secret"),
    ],
)
def test_a_key_is_found_beside_the_configuration(
    folder: Path, section: str, alg: str, file: str
) -> None:
    more = {"meta": "m"} if section == "jws" else {}
    sections: dict[str, object] = {section: {**key(alg, file), **more}}
    found = getattr(upstream(folder, **sections), section)
    (one,) = found.keys
    assert (one.id, one.alg, one.file) == ("a", alg, str(folder / file))


def test_a_shared_secret_is_read_without_its_line_break(folder: Path) -> None:
    found = upstream(folder, signatures=key("hmac-sha256", "secret")).signatures
    assert found is not None
    assert signatures.read_key(found.keys[0]) == SECRET
    assert (found.require, found.max_age) == (("content-digest",), None)


def test_a_signature_may_have_to_cover_more(folder: Path) -> None:
    more = {"require": ["@status", "date"], "max_age": "5m"}
    found = upstream(folder, signatures={**key("ed25519", "ed.pem"), **more}).signatures
    assert found is not None
    assert (found.require, found.max_age) == (("@status", "date"), 300.0)


def test_a_command_may_have_a_jws(folder: Path) -> None:
    found = upstream(folder, "command", jws={**key("EdDSA", "ed.pem"), "meta": "m"}).jws
    assert found is not None
    assert found.meta == "m"


@pytest.mark.parametrize(
    ("where", "section", "settings", "line", "message"),
    [
        ("url", "signatures", {"keys": []}, 6, "signatures.keys' must have"),
        ("url", "signatures", key("none", "ed.pem"), 9, "cannot be 'none'"),
        (
            "url",
            "signatures",
            key("ed25519", "gone"),
            10,
            "'gone' cannot be read (no such file or directory), name a file",
        ),
        ("url", "signatures", key("ed25519", "text"), 10, "'text' holds no public key in PEM"),
        ("url", "signatures", key("ed25519", "curve.pem"), 10, "another kind or size"),
        ("url", "signatures", key("ecdsa-p384-sha384", "curve.pem"), 10, "another kind or size"),
        ("url", "signatures", key("rsa-pss-sha512", "short.pem"), 10, "another kind or size"),
        ("url", "signatures", key("hmac-sha256", "text"), 10, "a shared secret of less than 32"),
        ("url", "signatures", key("hmac-sha256", "large"), 10, "larger than 65536 bytes"),
        ("url", "jws", {"meta": "m", **key("HS512", "secret")}, 11, "less than 64 bytes"),
        ("url", "jws", key("EdDSA", "ed.pem"), 5, "'meta' is missing"),
        ("url", "signatures", {"require": ["Date"], **key("ed25519", "ed.pem")}, 7, "'Date' names"),
        ("command", "signatures", key("ed25519", "ed.pem"), 7, "is not called over HTTP"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_with_its_place(
    folder: Path, where: str, section: str, settings: dict[str, object], line: int, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        upstream(folder, where, **{section: settings})
    assert message in caught.value.message
    assert caught.value.line == line


def test_without_the_extra_a_key_is_refused_with_what_to_install(folder: Path) -> None:
    # An interpreter that lacks one of the packages.
    hidden = "import sys; sys.modules['http_message_signatures'] = None"
    (folder / "sitecustomize.py").write_text(hidden)
    upstream(folder, signatures=key("ed25519", "ed.pem"))
    done = subprocess.run(
        [sys.executable, "-m", "turnlog", "serve", "--config", str(folder / "turnlog.yaml")],
        env={**os.environ, "PYTHONPATH": str(folder), "TURNLOG_DATA": str(folder / "data")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "turnlog.yaml:9:20: signatures need the package" in done.stderr
    assert "pip install 'turnlog[signatures]'" in done.stderr
