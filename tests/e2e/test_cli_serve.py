"""Messages of `turnlog serve` to the operator, at start and while it runs."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.stores import Call, fill, process, turnlog

URL = "http://127.0.0.1:9/mcp"


@contextmanager
def _proxy(data: Path, *before: str) -> Generator[subprocess.Popen[str]]:
    """Run a proxy on a free port, from its first lines (events `before` it is ready) to SIGTERM."""
    command = [sys.executable, "-m", "turnlog", "serve", "--upstream", URL, "--listen"]
    with subprocess.Popen(
        [*command, "127.0.0.1:0", "--data", str(data)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for wanted in (*before, "proxy.ready"):
            assert json.loads(running.stdout.readline())["event"] == wanted
        yield running
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=20)


@pytest.mark.promise("CLI-1")
def test_status_names_the_running_proxies_and_reading_goes_on_beside_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with _proxy(data) as running:
        while_running = json.loads(turnlog("status", "--json", data=data).stdout)
        log = turnlog("log", data=data)

    after = json.loads(turnlog("status", "--json", data=data).stdout)

    assert [writer["pid"] for writer in while_running["writers"]] == [running.pid]
    assert while_running["usage"]["limit"] == 10 << 30
    assert (log.returncode, log.stdout) == (0, "no attempts\n")
    assert after["writers"] == []
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "turnlog: --upstream: no tool server is named, write --upstream URL\n"),
        (["--upstream", "nonsense"], "turnlog: --upstream: 'nonsense' is not an http or https URL"),
        (["--upstream", f"s={URL}"], "turnlog: --upstream: 's' is reserved"),
        (["--upstream", URL, "--listen", "x"], "turnlog: --listen: 'x' is not an address"),
        (["--upstream", URL, "--durability", "fast"], "turnlog: --durability: 'durability' cannot"),
        (["--upstream", URL, "--log-level", "loud"], "turnlog: --log-level: 'log_level' cannot be"),
        (["--config", "absent.yaml"], "turnlog: absent.yaml: no such file or directory"),
        (["--rules", "x.yaml"], "turnlog: --rules: there is no file 'x.yaml', name a file"),
        (["--rules", "defautl"], "turnlog: --rules: no pack is called 'defautl', did you mean"),
        (
            ["--upstream", "http://127.0.0.1:7411/"],
            "turnlog: --upstream: upstream 'default' is the address that turnlog itself listens on",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = turnlog("serve", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.mark.promise("CLI-3")
def test_a_wrong_file_is_refused_with_file_line_and_column(tmp_path: Path) -> None:
    config = tmp_path / "turnlog.yaml"
    config.write_text("listen: 127.0.0.1:0\nlimits:\n  recrod: 1MiB\n")

    done = turnlog("serve", "--config", str(config))

    assert done.returncode == 2
    assert done.stderr == f"turnlog: {config}:3:3: unknown key 'recrod', did you mean 'record'?\n"


def test_wrong_rules_are_refused_with_their_place(tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text("rules:\n  - name: one\n    effect: reed\n")

    done = process("serve", "--upstream", URL, "--rules", str(rules), "--data", str(tmp_path / "d"))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"turnlog: {rules}:3:13: 'rules.0.effect' cannot be 'reed', did you mean 'read'?\n"
    )
    assert not (tmp_path / "d").exists()


def test_variables_are_read_and_a_misspelt_one_is_warned_of() -> None:
    environ = {"TURNLOG_UPSTREAM": URL, "TURNLOG_DURABILITY": "fast"}

    done = process("serve", environ=environ)

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "turnlog: TURNLOG_UPSTREAM is not a setting, did you mean TURNLOG_UPSTREAMS?"
    )
    assert done.stderr.splitlines()[1].startswith(
        "turnlog: TURNLOG_DURABILITY: 'durability' cannot"
    )


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        done = process("serve", "--upstream", URL, "--listen", address, "--data", str(tmp_path))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"turnlog: --listen: cannot listen on {address!r} (address already in use), "
        "name another address\n"
    )


def test_a_data_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    done = process("serve", "--upstream", URL, "--listen", "127.0.0.1:0", "--data", str(tmp_path))

    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_data_folder_that_is_a_file_is_the_stores_trouble(tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("text")
    data = str(tmp_path / "afile")

    done = process("serve", "--upstream", URL, "--listen", "127.0.0.1:0", "--data", data)

    assert done.returncode == 3
    assert done.stderr == (f"turnlog: {data!r} is no folder; name the data folder with --data\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_data_folder_without_permission_is_the_stores_trouble(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o600)

    done = process("serve", "--upstream", URL, "--listen", "127.0.0.1:0", "--data", str(data))

    assert done.returncode == 3
    assert done.stderr == (
        f"turnlog: cannot open {str(data)!r}: permission denied: {str(data / 'format')!r}; "
        "run as the user who owns the folder\n"
    )


def test_a_store_whose_key_is_gone_says_so_at_start_and_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with _proxy(data):
        first = (data / "key").read_bytes()
    (data / "key").unlink()
    with _proxy(data, "store.rekeyed"):
        assert (data / "key").read_bytes() != first
    with _proxy(data):
        pass


def test_a_replaced_key_is_noticed_and_status_says_since_when(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with _proxy(data):
        pass
    assert "key " not in process("status", "--data", str(data)).stdout
    (data / "key").write_bytes(bytes(32))
    with _proxy(data, "store.rekeyed"):
        pass
    shown = process("status", "--data", str(data)).stdout
    assert "key         another since 20" in shown
    told = json.loads(process("status", "--json", "--data", str(data)).stdout)
    assert told["usage"]["rekeyed_at"] > 0


def test_a_command_that_makes_a_lost_key_anew_says_so_and_status_remembers(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    fill(data, [Call(tool="pay", minute=1, status=None)])
    (data / "key").unlink()
    (call,) = json.loads(process("status", "--json", "--data", str(data)).stdout)["pending"]

    done = process("resolve", call["call"], "--did-not", "--data", str(data))

    assert done.returncode == 0
    assert "was gone or replaced: digests from before match nothing" in done.stderr
    assert "key         another since 20" in process("status", "--data", str(data)).stdout
