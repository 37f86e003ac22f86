"""turnlog says so when a list is empty for lack of rules, or a proxy has no rules."""

from pathlib import Path

from e2e.stores import turnlog
from kit.beside import proxy_beside, ruled
from kit.clients import MCP_HEADERS, Client, call, message
from kit.proxy import Proxy
from kit.upstreams import Peer, RawUpstream, result, text_result

WRITES = "rules:\n  - {match: {tool: write_file}, effect: write, delta: [{field: files_modified, op: modified, key: $.args.path}]}\n"
TOOLS: list[dict[str, object]] = [
    {"name": name, "inputSchema": {}} for name in ("read_file", "write_file")
]


def server(peer: Peer) -> None:
    request = peer.read().json()
    lists = request["method"] == "tools/list"
    peer.send_json(
        result(request["id"], {"tools": TOOLS}) if lists else text_result(request["id"], "done")
    )


def post(proxy: Proxy, body: bytes) -> None:
    with Client(proxy.url) as client:
        client.request("POST", "/mcp", body, headers=MCP_HEADERS)


def test_a_log_without_changes_names_the_pack_that_would_list_them(tmp_path: Path) -> None:
    with RawUpstream(server) as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        post(proxy, call("write_file", {"path": "/a"}))
        done = turnlog("log", "--field", "files_modified", data=proxy.data)
        assert (done.returncode, done.stdout) == (0, "no attempts\n")
        assert "no rule with delta applied to a call of 'default'" in done.stderr
        assert "the pack 'filesystem' knows write_file of 'default'" in done.stderr
        assert "the pack 'filesystem'" in turnlog("log", "--path", "*", data=proxy.data).stderr
        assert turnlog("log", data=proxy.data).stderr == ""


def test_a_server_or_session_without_rules_is_named_beside_one_that_has_them(
    tmp_path: Path,
) -> None:
    with RawUpstream(server) as upstream:
        both = {
            "ruled": {"url": upstream.url, "packs": ["filesystem"]},
            "bare": {"url": upstream.url},
        }
        with proxy_beside(tmp_path, settings={"upstreams": both}) as proxy:
            with Client(proxy.urls[0]) as client:
                for place in ("/s/one/ruled", "/s/two/bare"):
                    body = call("write_file", {"path": "/a"})
                    client.request("POST", place, body, headers=MCP_HEADERS)
            changed = ("log", "--field", "files_modified")
            lacking, known = (("--server", "bare"), ("two",)), (("--server", "ruled"), ("one",))
            for narrowed in lacking:
                said = turnlog(*changed, *narrowed, data=proxy.data).stderr
                assert "the pack 'filesystem' knows write_file of 'bare'" in said
                assert "'ruled'" not in said
            assert turnlog(*changed, data=proxy.data).stderr == ""
            for narrowed in known:
                assert turnlog(*changed, *narrowed, data=proxy.data).stderr == ""


def test_a_server_whose_calls_only_read_or_fail_lacks_no_rules(tmp_path: Path) -> None:
    def fails(peer: Peer) -> None:
        request = peer.read().json()
        peer.send_json(result(request["id"], {"content": [], "isError": True}))

    with RawUpstream(server) as upstream, RawUpstream(fails) as failing:
        packs = ["filesystem"]
        both = {
            "files": {"url": upstream.url, "packs": packs},
            "failing": {"url": failing.url, "packs": packs},
        }
        with proxy_beside(tmp_path, settings={"upstreams": both}) as proxy:
            with Client(proxy.urls[0]) as client:
                for place, tool in (("/files", "read_file"), ("/failing", "write_file")):
                    body = call(tool, {"path": "/a"})
                    client.request("POST", place, body, headers=MCP_HEADERS)
            assert turnlog("log", "--field", "files_modified", data=proxy.data).stderr == ""


def test_a_log_that_is_empty_for_another_reason_does_not_mention_rules(tmp_path: Path) -> None:
    with ruled(tmp_path, WRITES) as rig:
        rig.upstream.script = server
        rig.fresh()
        assert turnlog("log", "--field", "files_modified", data=rig.proxy.data).stderr == ""
        rig.post(call("write_file", {"path": "/a"}))
        assert turnlog("log", "--path", "/b", data=rig.proxy.data).stderr == ""
    assert rig.proxy.events("rules.missing") == []


def test_a_proxy_without_rules_says_so_once_and_names_packs_for_the_tools_it_knows(
    tmp_path: Path,
) -> None:
    with RawUpstream(server) as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy:
            (told,) = proxy.told("rules.missing")
            assert told["turnlog.upstreams"] == ["default"]
            assert "built in are fetch, filesystem" in told["turnlog.advice"]
            post(proxy, message("tools/list", {}))
            proxy.told("tools.listed")
        with proxy_beside(tmp_path, upstream.url) as proxy:
            (told,) = proxy.told("rules.missing")
    assert "'filesystem' knows read_file, write_file of 'default'" in told["turnlog.advice"]


def test_a_proxy_that_trusts_annotations_does_not_ask_for_rules(tmp_path: Path) -> None:
    with RawUpstream(server) as upstream:
        trusting = {"default": {"url": upstream.url, "trust_annotations": True}}
        with proxy_beside(tmp_path, settings={"upstreams": trusting}) as proxy:
            post(proxy, call("write_file"))
    assert proxy.events("rules.missing") == []
