from pathlib import Path

import pytest

from turnlog.packs.errors import ConfigError
from turnlog.packs.expand import LARGEST, expand
from turnlog.settings.layers import Flags, read_settings
from turnlog.settings.model import Settings
from turnlog.settings.upstream_url import UpstreamUrl

SECRET = "s3cr3t-valu3"
FILES = {"/run/token": f"{SECRET}\n".encode(), "/large": b"x" * (LARGEST + 1), "/odd": b"\xff"}


def read(path: str) -> bytes:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain $HOME $", "plain $HOME $"),
        ("${A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${file:/run/token}", SECRET),
        ("$${A}", "${A}"),
        ("${EMPTY}", ""),
    ],
)
def test_variables_and_files_are_inserted(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "EMPTY": ""}, read).text == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${B}", "the variable 'B' is not set"),
        ("${A", "'${' is not closed"),
        ("${a b}", "'a b' is no variable"),
        ("${}", "'' is no variable"),
        ("${file:/none}", "the file '/none' cannot be read (no such file or directory)"),
        ("${file:/large}", f"the file '/large' is larger than {LARGEST} bytes"),
        ("${file:/odd}", "the file '/odd' cannot be read (is no text)"),
    ],
)
def test_a_missing_variable_or_file_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        expand(text, {"A": "1"}, read)
    assert says in str(caught.value)


def settings(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "turnlog.yaml").write_text(f"upstreams:\n  one: {text}\n")
    return read_settings(flags=Flags(config="turnlog.yaml"), environ=environ, folder=folder)


def test_urls_and_variables_of_a_command_are_expanded_and_commands_are_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    command = '{command: [run, "${A}"], env: {TOKEN: "${file:token}", B: "x${A}"}, cwd: .}'

    one = settings(tmp_path, command, A="1").upstreams["one"]

    assert one.command == ("run", "${A}")
    assert one.env == {"TOKEN": SECRET, "B": "x1"}
    assert one.cwd == str(tmp_path)
    two = settings(tmp_path, '{url: "http://127.0.0.1:9/${A}?k=${A}"}', A="1").upstreams["one"]
    assert two.url == UpstreamUrl("http://127.0.0.1:9/1?k=1", values=((19, 20), (23, 24)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{url: "${A}"}', "2:14: '${A}' does not expand to a value that 'url' can have"),
        ('{url: "http://127.0.0.1:9/${NONE}"}', "2:14: the variable 'NONE' is not set"),
        ("{url: 'http://127.0.0.1:9/', env: {A: b}}", "2:42: only a command is given variables"),
        ("{url: 'http://127.0.0.1:9/', cwd: /}", "2:42: only a command is run in a folder"),
        ("{command: [x], cwd: nowhere}", "there is no folder"),
        ('{command: [x], env: {A: "${file:gone}"}}', "the file 'gone' cannot be read"),
    ],
)
def test_mistakes_have_a_place_and_show_no_value(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, text, A=SECRET)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)
