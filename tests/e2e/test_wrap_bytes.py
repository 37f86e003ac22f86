"""Lines pass a wrap unchanged in both directions."""

import json
import random
from pathlib import Path

import pytest

from kit.clients import call, message
from kit.proxy import findings
from kit.wraps import pumped, text_answer, wrapping

STRAYS = (
    b"Server listening on stdio\n",
    b"\n",
    b"\r\n",
    b"   \n",
    b'{"level":"info","msg":"started"}\n',
    b"42\n",
    b'"text"\n',
    b"null\n",
    b"\xff\xfe not UTF-8\n",
    b"\x1b[2Jterminal\x00control\n",
    b"{\n",
    b'{"jsonrpc":"2.0","id":1,\n',
)
ODD = (
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\r\n',
    b"\n",
    b"\r\n",
    b"no message\n",
    b"\xc3\x28\n",
    b'{"jsonrpc":"2.0","method":"a","method":"notifications/b"}\n',
    b'{ "jsonrpc" : "2.0" , "method":"notifications/x","params":{"n":1.0,"big":12345678901234567890}}\n',
    b'[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","method":"notifications/y"}]\n',
    b"[]\n",
    b"[1,2]\n",
    b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"t","arguments":{"a":1,"a":2}}}\n',
    b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"\xff","arguments":{}}}\r\n',
    b'{"jsonrpc":"2.0","id":11,"method":"tools/call","params":7}\n',
    b'{"jsonrpc":"2.0","id":null,"method":"tools/call"}\n',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"tools/call","params":{"name":"t"}}\n',
)


@pytest.mark.promise("PIPE-1")
def test_lines_of_the_agent_reach_the_server_unchanged(tmp_path: Path) -> None:
    sent = b"".join(ODD) + b'{"jsonrpc":"2.0","method":"notifications/last"}'
    with wrapping(tmp_path) as wrap:
        wrap.stdin.send(sent)
        wrap.stdin.close()
        assert wrap.server.stdin.rest() == sent
        wrap.server.exit()
        wrap.exited()


@pytest.mark.promise("PIPE-1")
def test_lines_of_the_server_reach_the_agent_unchanged(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put", request_id=1))
        wrap.asked(call("put", request_id=2))
        answers = (
            b'{"id":2,"result" : {"content":[{"type":"text","text":"\\u0000\xc3\xa9"}]},"jsonrpc":"2.0"}\r\n',
            b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"b\xff"}],"x":1,"x":2}}\n',
            b'{"jsonrpc":"2.0","id":77,"result":{}}\n',
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}\n',
            b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}\n',
            b'[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":5,"result":{}}]\n',
            b"a last line without its end",
        )
        said = b"".join((*STRAYS, *answers))
        wrap.server.stdout.send(said)
        wrap.server.exit()
        assert wrap.stdout.rest() == said
        assert wrap.exited() == 0
    second, first = sorted(wrap.rows(), key=lambda row: row.tool_result is None)
    assert {first.status, second.status} == {"ok"}
    for row in (first, second):
        assert "stray_output" in row.flags


@pytest.mark.promise("PIPE-9")
def test_stray_lines_are_logged_by_their_size_alone(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.stdout.send(b"".join(STRAYS))
        assert wrap.stdout.exactly(len(b"".join(STRAYS))) == b"".join(STRAYS)
    strays = wrap.events("output.stray")
    assert [one["turnlog.bytes"] for one in strays] == [len(s) for s in STRAYS if s.strip()]
    assert {one["turnlog.server"] for one in strays} == {"puppet"}
    assert "listening" not in json.dumps(wrap.events())


@pytest.mark.parametrize("sockets", [False, True], ids=["pipes", "sockets"])
def test_lines_of_ten_megabytes_pass_both_ways(tmp_path: Path, sockets: bool) -> None:
    big = "x" * 10_000_000
    with wrapping(tmp_path, sockets=sockets) as wrap:
        asked = call("put", {"text": big}, request_id="a") + b"\n"
        assert pumped(asked, wrap.stdin, wrap.server.stdin) == asked
        said = json.dumps(text_answer("a", big)).encode() + b"\n"
        # What is held back of a long line is little.
        wrap.server.stdout.send(said[: 4 << 20])
        early = wrap.stdout.exactly(2 << 20)
        rest = len(said) - len(early)
        assert early + pumped(said[4 << 20 :], wrap.server.stdout, wrap.stdout, rest) == said
    row = wrap.row()
    assert (row.status, row.bytes_out) == ("ok", len(said))


def test_a_line_too_large_to_hold_passes_and_is_recorded_by_its_start(tmp_path: Path) -> None:
    asked = call("put", {"text": "x" * 17_000_000}, request_id="big") + b"\n"
    with wrapping(tmp_path) as wrap:
        assert pumped(asked, wrap.stdin, wrap.server.stdin) == asked
        assert wrap.asked(call("next", request_id=2))["id"] == 2
        wrap.server.say(text_answer("big"))
        wrap.server.say(text_answer(2))
        assert wrap.stdout.json()["id"] == "big"
        assert wrap.stdout.json()["id"] == 2
    big, small = wrap.rows()
    assert (big.tool, big.status, small.status) == ("put", "ok", "ok")
    assert "truncated_record" in big.flags


def test_answers_may_come_out_of_order_and_in_arrays(tmp_path: Path) -> None:
    batch = b"[" + call("one", request_id=1) + b"," + call("two", request_id=2) + b"]"
    with wrapping(tmp_path) as wrap:
        assert [each["id"] for each in wrap.asked(batch)] == [1, 2]
        wrap.asked(call("three", request_id=3))
        said = json.dumps([text_answer(2, "2"), text_answer(1, "1")]).encode() + b"\n"
        wrap.server.say(text_answer(3, "3"))
        wrap.server.stdout.send(said)
        assert wrap.stdout.json()["id"] == 3
        assert wrap.stdout.line() == said
    found = {row.tool: (row.status, row.output_summary) for row in wrap.rows()}
    assert {tool: status for tool, (status, _) in found.items()} == dict.fromkeys(
        ("one", "two", "three"), "ok"
    )


def test_messages_cut_anywhere_are_the_same(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        for number in range(20):
            line = call("put", {"n": number}, request_id=number) + b"\r\n"
            wrap.stdin.send(line[:number])
            wrap.stdin.send(line[number:])
            assert wrap.server.stdin.line() == line
            said = json.dumps(text_answer(number)).encode() + b"\n"
            wrap.server.stdout.send(said[: number * 3])
            wrap.server.stdout.send(said[number * 3 :])
            assert wrap.stdout.line() == said
    assert [row.status for row in wrap.rows()] == ["ok"] * 20


@pytest.mark.promise("PIPE-1")
def test_pipelined_calls_reach_the_server_in_order_whatever_their_effects(tmp_path: Path) -> None:
    rules = "rules: [{match: {tool: look}, effect: read}, {match: {tool: put}, effect: write}]"
    with wrapping(tmp_path, rules=rules) as wrap:
        tools = ["put", "look", "look", "put", "look"] * 10
        wrap.send(*(call(tool, request_id=n) for n, tool in enumerate(tools)))
        assert [wrap.server.request()["id"] for _ in tools] == list(range(50))
        for number in reversed(range(50)):
            wrap.server.say(text_answer(number))
        assert [wrap.stdout.json()["id"] for _ in tools] == list(reversed(range(50)))
    assert {row.status for row in wrap.rows()} == {"ok"}


def test_an_agent_that_does_not_read_stops_the_server_and_loses_nothing(tmp_path: Path) -> None:
    note = message("notifications/message", {"data": "x" * 4000}, request_id=None) + b"\n"
    with wrapping(tmp_path) as wrap:
        sent = 0
        while sent < 32 << 20 and wrap.server.stdout.can_send(0.5):
            sent += wrap.server.stdout.send_some(note[sent % len(note) :])
        assert sent < 16 << 20, "turnlog held it all"
        assert (
            wrap.stdout.exactly(sent - len(note))
            == (note * (sent // len(note)))[: sent - len(note)]
        )


def test_sockets_in_the_place_of_pipes_end_as_pipes_do(tmp_path: Path) -> None:
    with wrapping(tmp_path, sockets=True) as wrap:
        wrap.server.answer(wrap.asked(call("put")))
        assert wrap.stdout.json() == text_answer(1)
    assert wrap.row().status == "ok"


SAID = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t","arguments":{"a":[1,{"b":null}]}}}',
    b'[{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}},{"jsonrpc":"2.0","id":5,"method":"ping"}]',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,"progress":1}}',
    b'{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{}}',
    b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32000,"message":"no"}}',
    b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"done"}]}}',
    b'[{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"done"}]}},7]',
)  # fmt: skip
BITS = (b"null", b"{", b'"', b"1e999", b"-", b"\\ud800", b"[[[", b"\xed\xa0\x80", b"\x00", b"\xff")


def babble(dice: random.Random, size: int) -> bytes:
    """Return lines of messages, a third of them spoilt; no answer among them says nothing."""
    lines: list[bytes] = []
    for _ in range(size):
        line = bytearray(dice.choice(SAID) % dice.randrange(8))
        if dice.random() < 0.3 and b"result" not in line:
            place = dice.randrange(len(line))
            line[place : place + dice.randrange(6)] = dice.choice(BITS)
        lines.append(bytes(line) + dice.choice([b"\n", b"\r\n"]))
    return b"".join(lines)


@pytest.mark.parametrize("seed", range(3))
def test_every_message_passes_and_every_call_ends(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    asked, said = babble(dice, 300), babble(dice, 300)
    with wrapping(tmp_path) as wrap:
        wrap.stdin.send(asked)
        wrap.server.stdout.send(said)
        # The agent's answers overtake what waits for the disk.
        came = wrap.server.stdin.exactly(len(asked))
        assert sorted(came.split(b"\n")) == sorted(asked.split(b"\n"))
        assert wrap.stdout.exactly(len(said)) == said
        wrap.server.exit(3)
        wrap.stdout.rest()
        assert wrap.exited() == 3
        assert wrap.events("proxy.faulted") == []
    assert "pending" not in {row.status for row in wrap.rows()}
    assert all(finding.verdict.intact for finding in findings(wrap.data))
