"""Where an answer is empty for want of rules, and where a proxy has none, turnlog says so."""

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


def test_a_log_without_changes_names_the_pack_that_would_tell_them(tmp_path: Path) -> None:
    with RawUpstream(server) as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        post(proxy, call("write_file", {"path": "/a"}))
        done = turnlog("log", "--field", "files_modified", data=proxy.data)
        assert (done.returncode, done.stdout) == (0, "no attempts\n")
        assert "no rule with delta applied to a call of 'default'" in done.stderr
        assert "the pack 'filesystem' knows write_file of 'default'" in done.stderr
        assert "the pack 'filesystem'" in turnlog("log", "--path", "*", data=proxy.data).stderr
        assert turnlog("log", data=proxy.data).stderr == ""


def test_a_log_that_is_empty_for_another_reason_says_nothing_of_rules(tmp_path: Path) -> None:
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
            assert "packs.md" in told["turnlog.advice"]
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
