import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from turnlog.core.canon import canonical
from turnlog.packs.errors import ConfigError, SettingError
from turnlog.packs.lock import (
    LARGEST,
    LockFile,
    Pin,
    kept_definition,
    lock_file,
    lock_text,
    pin,
    read_lock,
    write_lock,
)
from turnlog.redaction.redact import Redactor
from turnlog.wire.tool_definition import kept
from turnlog.wire.tools_list import read_tools_list


def made(raw: str) -> Pin:
    (definition,) = read_tools_list(Raw(f'{{"tools":[{raw}]}}'.encode())).definitions.values()
    return pin(definition.digest, kept(raw.encode(), Redactor()))


ADD = made('{"name":"add","description":"\u00e9 \\u001b[2J","x":[1.5,true,9007199254740993]}')
PLAIN = made('{"name":"more","inputSchema":{"type":"object"},"n":1e2}')
SECRET = made('{"name":"login","password":"hunter2"}')
LOCK = LockFile(servers={"b": {"more": PLAIN, "add": ADD}, "a": {"login": SECRET}})


def test_a_lock_reads_as_it_was_written(tmp_path: Path) -> None:
    write_lock(tmp_path / "turnlog.lock", LOCK)
    assert read_lock(tmp_path / "turnlog.lock") == LOCK
    assert [path.name for path in tmp_path.iterdir()] == ["turnlog.lock"]


def test_a_lock_is_sorted_and_shows_nothing_invisible() -> None:
    turned = LockFile(servers={"a": {"login": SECRET}, "b": {"add": ADD, "more": PLAIN}})
    assert lock_text(LOCK) == lock_text(turned)
    assert "\x1b" not in lock_text(LOCK)
    assert "\u00e9" in lock_text(LOCK)
    assert lock_text(LOCK).startswith('{\n  "servers": {\n    "a": {')


def test_a_pin_knows_its_tool() -> None:
    assert LOCK.find("a", "login") is SECRET
    assert LOCK.find("a", "add") is LOCK.find("c", "add") is None
    assert SECRET.partial
    assert (
        kept_definition(PLAIN).text
        == canonical(b'{"name":"more","inputSchema":{"type":"object"},"n":1e2}')[1]
    )


def test_no_lock_pins_nothing(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "turnlog.lock") == LockFile()


@pytest.mark.promise("PROV-5")
def test_the_lock_lies_beside_the_configuration_else_with_the_data(tmp_path: Path) -> None:
    assert lock_file(tmp_path / "x.yaml", Path("/data")) == tmp_path / "turnlog.lock"
    assert lock_file(None, Path("/data")) == Path("/data/turnlog.lock")


def test_a_lock_in_yaml_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "turnlog.lock"
    path.write_text(f"version: 1\nservers:\n  b: {{more: {{hash: '{PLAIN.hash}', definition: "
                    "{name: more, inputSchema: {type: object}, n: 100}}}\n")  # fmt: skip
    assert read_lock(path).servers["b"]["more"].hash == PLAIN.hash


def broken(**changes: object) -> str:
    plain: dict[str, Any] = json.loads(lock_text(LOCK))
    plain["servers"]["b"]["more"].update(changes)
    return json.dumps(plain, indent=2, sort_keys=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", ":1:2: "),
        ("", ":1:1: the file is empty"),
        ('{"version": 3}', ":1:13: version 3 is not 1"),
        ('{"versions": 1}', ":1:2: unknown key 'versions', did you mean 'version'?"),
        ('{"servers": {"a": {"t": {"hash": "x"}}}}', ":1:25: 'definition' is missing"),
        ('{"servers": {"a": {}, "a": {}}}', ":1:23: 'a' is given twice"),
        (broken(hash="sha256:12"), "is no hash"),
        (broken(hash=SECRET.hash), "this is not the hash"),
        (broken(definition={"name": "more"}), "this is not the hash"),
    ],
)  # fmt: skip
def test_a_broken_lock_is_refused_with_a_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "turnlog.lock"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_lock(path)
    assert str(caught.value).startswith(f"{path}:")
    assert message in str(caught.value)
    mends = "restore the lock, or remove it and run `turnlog trust` again" in str(caught.value)
    assert mends == ("version 3" not in message)


def test_a_large_broken_lock_is_refused_without_a_place(tmp_path: Path) -> None:
    path = tmp_path / "turnlog.lock"
    path.write_text('{"servers": {"a": {' + " " * (1 << 20))
    with pytest.raises(ConfigError, match="not what `turnlog trust` writes"):
        read_lock(path)
    path.write_text('{"version": 2}' + " " * (1 << 20))
    with pytest.raises(ConfigError, match="version: version 2 is not 1"):
        read_lock(path)
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(ConfigError, match="larger than"):
        read_lock(path)


def test_a_folder_is_refused_as_a_lock(tmp_path: Path) -> None:
    (tmp_path / "turnlog.lock").mkdir()
    with pytest.raises(ConfigError, match="is a directory, make it readable"):
        read_lock(tmp_path / "turnlog.lock")


def test_a_failed_write_leaves_the_old_lock(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be written"):
        write_lock(tmp_path / "absent" / "turnlog.lock", LOCK)
    (tmp_path / "turnlog.lock").mkdir()
    with pytest.raises(SettingError, match="cannot be written"):
        write_lock(tmp_path / "turnlog.lock", LOCK)
    assert [path.name for path in tmp_path.iterdir()] == ["turnlog.lock"]


def test_a_lock_that_is_a_symlink_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "turnlog.lock")
    write_lock(tmp_path / "link", LOCK)
    assert (tmp_path / "link").is_symlink()
    assert read_lock(tmp_path / "turnlog.lock") == LOCK
