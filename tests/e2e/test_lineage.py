"""Where the values in calls came from: recorded beside the calls, shown by `show`, `why` and the API."""

import json
import random
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.proxy import rows
from kit.upstreams import Peer, RawUpstream, ok, text_result
from kit.wraps import initialize, wrapping
from turnlog.sessions.rows import Row

PATH = "/srv/reports/q3-4711.txt"
OTHER = "https://build.example/jobs/8812"


class World:
    """An upstream that answers each tool with the text that a test says, and a proxy before it."""

    def __init__(self, upstream: RawUpstream, data: Path, url: str) -> None:
        self.texts: dict[str, str] = {}
        self.data = data
        self.url = url
        upstream.script = self._answer

    def _answer(self, peer: Peer) -> None:
        request = peer.read().json()
        text = self.texts.get(request["params"]["name"], "done")
        peer.send(ok(json.dumps(text_result(request["id"], text)).encode()))

    def call(self, tool: str, text: str = "", session: str = "one", **arguments: Any) -> Row:
        """Make a call that is answered with a text; return its row once it has ended."""
        self.texts[tool] = text or "done"
        made = len(session_rows(self.data, session))
        with Client(self.url) as client:
            head = client.request(
                "POST", f"/s/{session}/mcp", call(tool, arguments), headers=MCP_HEADERS
            ).head
        assert head.status == 200
        wait_until(lambda: len(self.rows(session)) > made, "the call has ended")
        return self.rows(session)[-1]

    def rows(self, session: str = "one") -> list[Row]:
        """Return the calls of a session that have ended."""
        return [row for row in session_rows(self.data, session) if row.status != "pending"]

    def origins(self, row: Row) -> list[dict[str, Any]]:
        """Return the origins that `show --json` gives of a call."""
        found: list[dict[str, Any]] = shown(self.data, row)["origins"]
        return found


def shown(data: Path, row: Row) -> dict[str, Any]:
    """Return what `show --json` says of a call."""
    found: dict[str, Any] = json.loads(printed(data, "show", f"{row.session}:{row.seq}", "--json"))
    return found


def printed(data: Path, *arguments: str) -> str:
    """Return what a command prints."""
    done = turnlog(*arguments, data=data)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def sourced(row: Row, pointer: str) -> dict[str, Any]:
    """Return the origin of a value that stood alone in the text of a call's result."""
    return {
        "pointer": pointer,
        "origin": "sourced",
        "session": row.session,
        "seq": row.seq,
        "place": "/content/0/text",
        "evidence": "exact",
        "tainted": False,
    }


def unverified(pointer: str) -> dict[str, Any]:
    """Return the origin of a value that was never seen before."""
    nothing = dict.fromkeys(("session", "seq", "place", "evidence"))
    return {"pointer": pointer, "origin": "unverified", **nothing, "tainted": False}


@pytest.fixture
def world(tmp_path: Path) -> Generator[World]:
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        yield World(upstream, proxy.data, proxy.url)


@pytest.mark.promise("PROV-12")
def test_a_value_of_an_earlier_output_is_sourced_with_its_commit_and_place(world: World) -> None:
    one = world.call("find", f"one file: {PATH}")
    two = world.call("read", path=PATH, job=OTHER, lines=7)
    assert world.origins(two) == [sourced(one, "/path"), unverified("/job")]
    assert two.provenance == "unverified"
    assert two.provenance_reasons == ["tool: unverified", "inputs: /job unverified"]
    text = printed(world.data, "show", f"{two.session}:{two.seq}")
    assert f"from        /path from {one.session}:{one.seq} /content/0/text (exact)\n" in text
    assert "from        /job unverified: not seen before in this session\n" in text
    assert "provenance  unverified; tool: unverified\n" in text


@pytest.mark.promise("PROV-12")
def test_what_the_runtime_declares_is_declared_with_its_note(world: World) -> None:
    first = world.call("begin")
    token = (world.data / "token").read_text().strip()
    note = {"kind": "user_input", "text": f"please look at {OTHER}", "source": "system"}
    with Client(world.url) as client:
        made = client.request(
            "POST",
            "/turnlog/api/v1/sessions/one/notes",
            json.dumps(note).encode(),
            headers=(("Authorization", f"Bearer {token}"), ("Content-Type", "application/json")),
        ).json()
    row = world.call("fetch", url=OTHER)
    (origin,) = world.origins(row)
    assert origin["origin"] == "declared"
    assert (origin["session"], origin["seq"]) == (first.session, made["seq"])
    assert origin["place"] == "system"
    assert row.provenance_reasons == ["tool: unverified"]


@pytest.mark.promise("PROV-16")
def test_why_follows_a_value_back_to_where_it_entered(world: World) -> None:
    one = world.call("find", f"one file: {PATH}", query="reports of q3")
    two = world.call("copy", "copied to build-77123", source=PATH)
    three = world.call("publish", "ok", build="build-77123", source=PATH)
    text = printed(world.data, "why", f"one:{three.seq}", "/source")
    assert text.splitlines() == [
        f'{three.session}:{three.seq} /source "{PATH}"',
        f"└─ /source from {one.session}:{one.seq} /content/0/text (exact), output of default/find",
        "   └─ it entered here: no input of this call has it",
    ]
    # What a tool gives back of its own input came from further back.
    four = world.call("echo", "see build-77123", what="build-77123")
    five = world.call("announce", "ok", build="build-77123")
    found = json.loads(printed(world.data, "why", f"one:{five.seq}", "/build", "--json"))
    (step,) = found["steps"]
    assert (step["origin"]["seq"], step["end"]) == (two.seq, "entered")
    assert four.seq < five.seq


@pytest.mark.promise("PROV-16")
def test_why_goes_on_through_the_inputs_of_the_call_that_had_the_value(world: World) -> None:
    one = world.call("login", "done", account="acct-99100")
    two = world.call("status", "done", account="acct-99100")
    world.call("open", "opened case-5512 for acct-99100", account="acct-99100")
    four = world.call("close", "ok", case="acct-99100")
    found = json.loads(printed(world.data, "why", f"one:{four.seq}", "/case", "--json"))
    (step,) = found["steps"]
    (earlier,) = step["earlier"]
    assert (earlier["origin"]["pointer"], earlier["end"]) == ("/account", "unverified")
    assert one.seq < two.seq


@pytest.mark.promise("PROV-16")
def test_why_follows_only_the_value_where_a_text_holds_several(world: World) -> None:
    one = world.call("find", f"one file: {PATH}")
    world.call("list", "jobs: build-77123")
    world.call("run", f"copied {PATH}", command=f"cp {PATH} /backup --tag build-77123")
    four = world.call("read", path=PATH)
    found = json.loads(printed(world.data, "why", f"one:{four.seq}", "/path", "--json"))
    (step,) = found["steps"]
    # The first output that had it is where it is from: nothing leads further.
    assert (step["origin"]["seq"], step["end"]) == (one.seq, "entered")
    five = world.call("use", tag="build-77123", command=f"cat {PATH}")
    world.call("echo", "acct-5512 done", of=f"{PATH} acct-5512")
    six = world.call("close", account="acct-5512")
    found = json.loads(printed(world.data, "why", f"one:{six.seq}", "/account", "--json"))
    (step,) = found["steps"]
    (earlier,) = step["earlier"]
    assert (earlier["origin"]["pointer"], earlier["end"]) == ("/of", "unverified")
    assert five.seq < six.seq


def test_without_a_pointer_why_lists_those_that_can_be_followed(world: World) -> None:
    one = world.call("find", f"one file: {PATH}")
    two = world.call("copy", "ok", source=PATH, build="build-77123")
    lines = printed(world.data, "why", f"one:{two.intent_seq}").splitlines()
    assert lines == [
        f"{two.session}:{two.seq} default/copy",
        f"/source from {one.session}:{one.seq} /content/0/text (exact)",
        "/build unverified: not seen before in this session",
    ]
    found = json.loads(printed(world.data, "why", f"one:{two.seq}", "--json"))
    assert [each["pointer"] for each in found["origins"]] == ["/source", "/build"]
    world.call("list", "none", count=3)
    none = world.call("list", "none", count=3)
    done = turnlog("why", f"one:{none.seq}", data=world.data)
    assert (done.returncode, "has no value that is looked for" in done.stderr) == (2, True)


def test_a_text_with_a_known_and_a_new_value_is_said_to_be_new_in_part(world: World) -> None:
    one = world.call("find", f"one file: {PATH}")
    two = world.call("run", "ok", command=f"cp {PATH} /backup/new-77123")
    assert printed(world.data, "why", f"one:{two.seq}").splitlines()[1:] == [
        f"/command from {one.session}:{one.seq} /content/0/text (entity)",
        "/command unverified: a part was not seen before in this session",
    ]
    followed = printed(world.data, "why", f"one:{two.seq}", "/command").splitlines()
    new = "└─ /command unverified: a part was not seen before in this session"
    assert followed[-1] == new


def test_a_call_is_named_by_its_newest_commit_and_found_by_any_of_them(world: World) -> None:
    one = world.call("find", f"one file: {PATH}")
    two = world.call("copy", "ok", source=PATH)
    by_intent = printed(world.data, "why", f"one:{two.intent_seq}", "/source")
    assert by_intent == printed(world.data, "why", f"one:{two.seq}", "/source")
    assert by_intent.startswith(f"{two.session}:{two.seq} /source")
    printed(world.data, "taint", "mark", f"one:{one.intent_seq}", "--why", "forged")
    shown = [
        json.loads(printed(world.data, "taint", "show", "one", "--to", str(seq), "--json"))
        for seq in (two.intent_seq, two.seq)
    ]
    assert [[c["seq"] for c in each["sources"] + each["calls"]] for each in shown] == [
        [one.seq, two.seq]
    ] * 2


@pytest.mark.parametrize(
    ("commit", "pointer", "said"),
    [
        ("{seq}", "/nothing", "has nothing at '/nothing'; values are known at '/path'"),
        ("{seq}", "path", "has nothing at 'path'; values are known at '/path'"),
        ("{seq}", "/lines", "too short or too common"),
        ("99", "/path", "no call has commit "),
        ("0", "/path", ":0 (open); `turnlog log "),
    ],
)
def test_why_says_what_to_do_where_it_knows_nothing(
    world: World, commit: str, pointer: str, said: str
) -> None:
    row = world.call("read", path=PATH, lines=7)
    done = turnlog("why", f"one:{commit.format(seq=row.seq)}", pointer, data=world.data)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.promise("PROV-16")
def test_the_api_gives_the_same(world: World) -> None:
    world.call("find", f"one file: {PATH}")
    row = world.call("read", path=PATH)
    token = (world.data / "token").read_text().strip()
    with Client(world.url) as client:
        given = client.request(
            "GET",
            f"/turnlog/api/v1/sessions/one/why?seq={row.seq}&pointer=/path",
            headers=(("Authorization", f"Bearer {token}"),),
        )
    assert given.json() == json.loads(
        printed(world.data, "why", f"one:{row.seq}", "/path", "--json")
    )


@pytest.mark.promise("PROV-15")
def test_outputs_from_before_a_restart_count(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy:
            one = World(upstream, proxy.data, proxy.url).call("find", f"one file: {PATH}")
        with proxy_beside(tmp_path, upstream.url) as proxy:
            world = World(upstream, proxy.data, proxy.url)
            world.call("look")  # reads what came before
            two = world.call("read", path=PATH)
            assert world.origins(two) == [sourced(one, "/path")]


@pytest.mark.promise("PROV-15")
def test_outputs_from_before_a_kill_count(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy:
            one = World(upstream, proxy.data, proxy.url).call("find", f"one file: {PATH}")
            proxy.kill()
        with proxy_beside(tmp_path, upstream.url) as proxy:
            world = World(upstream, proxy.data, proxy.url)
            world.call("look")
            assert world.origins(world.call("read", path=PATH)) == [sourced(one, "/path")]


@pytest.mark.promise("PROV-15")
def test_outputs_that_another_proxy_recorded_count(tmp_path: Path) -> None:
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url) as one,
        proxy_beside(tmp_path, upstream.url) as two,
    ):
        world = World(upstream, one.data, one.url)
        for world.url in (one.url, two.url):
            world.call("look")
        world.url = one.url
        found = world.call("find", f"one file: {PATH}")
        world.url = two.url
        read = world.call("read", path=PATH)
        assert world.origins(read) == [sourced(found, "/path")]


@pytest.mark.promise("PROV-15")
def test_a_fork_knows_the_outputs_of_its_parent(world: World) -> None:
    one = world.call("find", f"one file: {PATH}")
    printed(world.data, "fork", "one", "--name", "other")
    world.call("look", session="other")
    two = world.call("read", session="other", path=PATH)
    assert world.origins(two) == [sourced(one, "/path")]


@pytest.mark.promise("PROV-12")
def test_calls_of_plain_http_tools_are_looked_up_too(tmp_path: Path) -> None:
    def answer(peer: Peer) -> None:
        request = peer.read()
        found = b'{"orders": [{"id": "ord-55102"}]}' if request.target == b"/orders" else b"{}"
        peer.send(ok(found))

    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        upstream.script = answer
        with Client(proxy.url) as client:
            client.request("GET", "/s/one/orders")
            client.request("GET", "/s/one/orders/ord-55102?trace=tr-90017")
        wait_until(lambda: len(session_rows(proxy.data, "one")) == 2, "two rows")
        one, two = session_rows(proxy.data, "one")
        origins = {each["pointer"]: each for each in shown(proxy.data, two)["origins"]}
        assert set(origins) == {"/path", "/query"}
        path = origins["/path"]
        assert (path["origin"], path["seq"], path["place"]) == ("sourced", one.seq, "/orders/0/id")
        assert origins["/query"]["origin"] == "unverified"


@pytest.mark.promise("PROV-12")
def test_calls_through_a_pipe_are_looked_up_too(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        initialize(wrap)
        for number, (path, text) in enumerate((("", f"one file: {PATH}"), (PATH, "done"))):
            asked = wrap.asked(call("read", {"path": path}, request_id=number + 1))
            wrap.server.answer(asked, text)
            wrap.stdout.json()
        data = wrap.data
    one, two = rows(data)
    assert shown(data, two)["origins"] == [sourced(one, "/path")]


@pytest.mark.promise("PROV-13")
def test_of_a_large_output_the_rest_is_partial(world: World) -> None:
    world.call("find", f"{PATH} {'x y ' * 20_000} {OTHER}")
    row = world.call("read", path=PATH, job=OTHER)
    found = shown(world.data, row)
    assert [each["origin"] for each in found["origins"]] == ["sourced", "unverified"]
    assert found["partial"] == "first 64 KiB"
    assert row.provenance_reasons == [
        "tool: unverified", "inputs: /job unverified", "inputs: partial (first 64 KiB)",
    ]  # fmt: skip


@pytest.mark.promise("PROV-13")
def test_of_what_is_not_recorded_whole_the_rest_is_partial(tmp_path: Path) -> None:
    settings = {"limits": {"record": "100"}}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        world = World(upstream, proxy.data, proxy.url)
        one = world.call("write", note="x y " * 50)
        assert shown(world.data, one)["partial"] == "the input is not recorded whole"
        world.call("find", "x y " * 50 + PATH)
        two = world.call("read", path=PATH)
        assert world.origins(two) == [unverified("/path")]
        assert shown(world.data, two)["partial"] == "not all outputs are recorded whole"


@pytest.mark.promise("PROV-13")
def test_what_a_rule_keeps_out_of_the_record_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules: [{match: {tool: quiet}, store: nothing}]")
    settings = {"rules": ["rules.yaml"]}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        world = World(upstream, proxy.data, proxy.url)
        quiet = world.call("quiet", f"one file: {PATH}", path=OTHER)
        assert shown(world.data, quiet)["partial"] == "the input is not recorded"
        assert world.origins(world.call("read", path=PATH)) == [unverified("/path")]


@pytest.mark.promise("PROV-13")
def test_a_burst_of_parallel_calls_loses_nothing(world: World) -> None:
    count = 500
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)

    def work(mine: list[int]) -> None:
        with Client(world.url) as client:
            for number in mine:
                body = call("find", {"query": f"ticket-{10_000 + number}"})
                client.request("POST", "/s/one/mcp", body, headers=MCP_HEADERS)

    world.texts["find"] = f"one file: {PATH}"
    threads = [threading.Thread(target=work, args=(numbers[each::50],)) for each in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(world.rows()) == count, "all calls have ended")
    reasons = [row.provenance_reasons for row in world.rows()]
    wanted = ["tool: unverified", "inputs: /query unverified"]
    assert [each for each in reasons if each != wanted] == []
    assert world.origins(world.call("read", path=PATH))[0]["origin"] == "sourced"


@pytest.mark.promise("PROV-14")
def test_what_is_recorded_holds_no_values_and_goes_with_the_content(world: World) -> None:
    world.call("find", f"one file: {PATH}")
    row = world.call("read", path=PATH)
    assert PATH not in json.dumps(world.origins(row))
    printed(world.data, "purge", "one", "--yes", "--expect", str(world.rows()[-1].seq))
    assert world.origins(row) == []
    done = turnlog("why", f"{row.session}:{row.seq}", "/path", data=world.data)
    assert done.returncode == 2
    assert "purged" in done.stderr


@pytest.mark.promise("PROV-15")
def test_a_session_that_was_moved_takes_it_along(world: World, tmp_path: Path) -> None:
    world.call("find", f"one file: {PATH}")
    row = world.call("read", path=PATH)
    bundle, there = str(tmp_path / "one.bundle"), tmp_path / "there"
    printed(world.data, "resume", "one", "--copy", "--bundle", bundle)
    done = turnlog("import", bundle, data=there)
    assert done.returncode == 0, done.stderr
    assert shown(there, row)["origins"] == world.origins(row)
    named = (f"{row.session}:{row.seq}", "/path", "--json")
    assert printed(there, "why", *named) == printed(world.data, "why", *named)


@pytest.mark.promise("PROV-14")
def test_what_was_redacted_is_no_value(world: World) -> None:
    world.call("login", '{"password": "hunter2-hunter2"}')
    row = world.call("use", password="hunter2-hunter2", path=PATH)
    assert world.origins(row) == [unverified("/path")]


def test_header_and_event_say_the_provenance(tmp_path: Path) -> None:
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        rig = Rig(upstream, proxy)
        rig.fresh()
        with rig.client() as client:
            head = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS).head
        assert head.one("turnlog-provenance") == "unverified"
        (event,) = proxy.told("call.ended")
        assert event["turnlog.provenance"] == "unverified"


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    settings = {"provenance": {"inputs": "off"}}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        world = World(upstream, proxy.data, proxy.url)
        world.call("find", f"one file: {PATH}")
        row = world.call("read", path=PATH)
        assert world.origins(row) == []
        done = turnlog("why", f"one:{row.seq}", "/path", data=world.data)
        assert "inputs: off" in done.stderr
