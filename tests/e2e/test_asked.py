"""Inputs in the log: previews, whole inputs and outputs, and filters by input."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside
from kit.clients import call
from kit.upstreams import RawUpstream, answer, ok, text_result

SECRET = "sk-proj-Tr0ub4dor8Xq2Lm9Zk4Vw7Yp1Hs6Jd3Fb5Gc0Na"
TRACE = "0af7651916cd43dd8448eb211c80319c"
ANSWER = json.dumps(text_result(1, "x" * 3000)).encode()


@pytest.fixture
def asked(rig: Rig) -> Rig:
    rig.upstream.script = answer(ok(ANSWER))
    traced = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")
    rig.post(call("read_file", {"path": "/srv/Ärger.txt", "token": SECRET}), traced)
    rig.post(call("read_file", {"path": "/srv/other.txt", "pad": "y" * 2000}))
    rig.ended_rows(2)
    return rig


def lines(rig: Rig, *arguments: str) -> list[Any]:
    done = turnlog("log", rig.session, "--json", *arguments, data=rig.proxy.data)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_row_has_a_short_form_of_its_input(asked: Rig) -> None:
    first, second = lines(asked)
    assert first["input_summary"] == '{"path": "/srv/\\u00c4rger.txt", "token": "[redacted]"}'
    assert second["input_summary"].startswith('{"path": "/srv/other.txt", "pad": "yyy')
    assert len(second["input_summary"].encode()) <= 200
    assert "input" not in first
    table = turnlog("log", asked.session, data=asked.proxy.data).stdout
    assert "rger.txt" in table.splitlines()[1]


@pytest.mark.parametrize("text", ["ärger", "ÄRGER.TXT", '"/srv/Ärger'])
def test_calls_are_found_by_what_they_asked_in_any_case(asked: Rig, text: str) -> None:
    (row,) = lines(asked, "--input", text)
    assert "rger.txt" in row["input_summary"]


def test_the_whole_input_is_searched_and_no_secret(asked: Rig) -> None:
    assert len(lines(asked, "--input", "y" * 1500)) == 1
    assert lines(asked, "--input", SECRET[:20]) == []
    assert turnlog("log", "--input", "", data=asked.proxy.data).returncode == 2


def test_calls_are_found_by_their_trace(asked: Rig) -> None:
    assert [row["trace"] for row in lines(asked, "--trace", TRACE)] == [TRACE]
    assert lines(asked, "--trace", "f" * 32) == []


def test_payloads_are_whole_and_redacted(asked: Rig) -> None:
    first, second = lines(asked, "--payloads")
    assert SECRET not in json.dumps(first)
    assert json.loads(first["input"]["text"])["token"] == "[redacted]"
    assert json.loads(second["input"]["text"])["pad"] == "y" * 2000
    assert json.loads(second["output"]["text"])["content"][0]["text"] == "x" * 3000
    text = turnlog("log", asked.session, "--payloads", data=asked.proxy.data).stdout
    assert text.count("y" * 2000) == 1
    assert text.count("x" * 3000) == 2
    assert SECRET not in text


def test_show_takes_several_calls_and_begins_with_input_and_output(asked: Rig) -> None:
    calls = [row["call"] for row in lines(asked)]
    done = turnlog("show", *calls, data=asked.proxy.data).stdout.splitlines()
    assert [line.split()[1] for line in done if line.startswith("call ")] == calls
    heads = [line.split()[0] for line in done if line[:1].isalpha()]
    assert [head for head in heads if head != "from"][:5] == [
        "call", "tool", "status", "input", "output"
    ]  # fmt: skip


@pytest.mark.promise("API-2")
def test_the_api_gives_payloads_and_filters_as_the_command_does(asked: Rig) -> None:
    token = (asked.proxy.data / "token").read_text().strip()
    headers = (("Authorization", f"Bearer {token}"),)

    def items(query: str) -> list[Any]:
        with asked.client() as client:
            path = f"/turnlog/api/v1/sessions/{asked.session}/log?{query}"
            got = client.request("GET", path, headers=headers)
        assert got.status == 200, got.body
        return list(got.json()["items"])

    assert len(items("input=%C3%A4rger")) == 1
    assert len(items(f"trace={TRACE}")) == 1
    (found,) = items("input=other.txt&payloads=true")
    assert len(found["output"]["text"]) > 3000
    assert "input" not in items("")[0]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("proxy")
    with RawUpstream() as upstream, proxy_beside(folder, upstream.url) as proxy:
        yield Rig(upstream, proxy)
