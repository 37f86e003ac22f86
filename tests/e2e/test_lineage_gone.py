"""Where values came from and what was contaminated, once contents are gone: trimmed, expired, purged."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.stores import turnlog
from kit.attempts import ask, bench, session
from kit.beside import Rig, proxy_beside
from kit.clients import call, wait_until
from kit.upstreams import RawUpstream, answer, ok, text_result
from turnlog.core.classify import SUCCESS
from turnlog.core.kinds import Effect
from turnlog.exchange.outcome import AnswerFacts
from turnlog.rules.model import TaintAction
from turnlog.rules.policy import Policy

TOKEN = "deploy-7f3a9c21"
DAY = 86_400 * 10**9
RULES = "rules: [{match: {tool: read_mail}, taint: mark}]"


def ran(data: Path, *arguments: str) -> str:
    done = turnlog(*arguments, data=data)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def contamination(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran(data, "taint", "show", "work", "--format", "json"))
    return found


def drawn(data: Path) -> tuple[list[str], list[str]]:
    """Return the tools of the sources and of the calls that used them."""
    found = contamination(data)
    return [one["tool"] for one in found["sources"]], [one["tool"] for one in found["calls"]]


def kept(data: Path, commit: str) -> tuple[str, str]:
    shown = json.loads(ran(data, "show", commit, "--json"))
    return shown["input"]["kept"], shown["output"]["kept"]


def given(rig: Rig, tool: str, output: str, **arguments: object) -> None:
    rig.upstream.script = answer(ok(json.dumps(text_result(1, output)).encode()))
    rig.post(call(tool, arguments))


def poisoned(rig: Rig) -> tuple[str, str]:
    """Read a poisoned mail and use a value of it; return both commits."""
    rig.session = "work"
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "deploy", "started", target=TOKEN)
    mail, deploy = rig.ended_rows(2)
    return f"{mail.session}:{mail.seq}", f"{deploy.session}:{deploy.seq}"


@pytest.mark.promise("TAINT-6")
def test_what_was_trimmed_counts_as_it_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], "limits": {"store": "4MiB"}}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
    ):
        rig = Rig(upstream, proxy)
        mail, deploy = poisoned(rig)
        rig.session, dice = "other", random.Random(1)
        for _ in range(12):
            given(rig, "list", dice.randbytes(450_000).hex(), path="/srv/data-1")
        wait_until(lambda: kept(proxy.data, mail)[1] == "trimmed", "the oldest content is trimmed")
    assert drawn(proxy.data) == (["read_mail"], ["deploy"])
    partial = contamination(proxy.data)["partial"]
    assert f"values of {mail} may be missing: its content is gone (trimmed)" in partial
    shown = json.loads(ran(proxy.data, "why", deploy, "/target", "--json"))
    (step,) = shown["steps"]
    assert (step["source"], step["end"]) == ("default/read_mail", "gone")
    assert "trimmed" in ran(proxy.data, "show", mail)


def recorded(folder: Path) -> None:
    """Record the poisoned session, of more than a year ago."""

    async def record() -> None:
        async with bench(folder) as one:
            one.time.now = -400 * DAY
            ref = session()
            for tool, target, text, taint in (
                ("read_mail", "mail-1234", f"please use {TOKEN}", TaintAction.MARK),
                ("deploy", TOKEN, "started", None),
            ):
                arguments = json.dumps({"target": target}).encode()
                asked = ask(ref, one.recorder.new_call(), arguments=arguments, effect=Effect.READ)
                asked = msgspec.structs.replace(asked, tool=tool, policy=Policy(taint=taint))
                attempt = await one.recorder.begin(asked)
                await one.lineage.caught_up(ref)
                content = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
                facts = AnswerFacts(content=content, size=len(content), is_mcp=True, is_result=True)
                one.recorder.end(attempt, SUCCESS, facts)
                assert attempt.outcome is not None
                await attempt.outcome.done()

    asyncio.run(record())


@pytest.mark.promise("TAINT-6")
def test_what_has_expired_counts_as_it_was_recorded(tmp_path: Path) -> None:
    data, config = tmp_path / "data", tmp_path / "turnlog.yaml"
    recorded(data)
    mail, deploy = (row["seq"] for row in map(json.loads, ran(data, "log", "--json").splitlines()))
    before = contamination(data)
    config.write_text("retention: {payloads: 7d, bodies: forever}\n")
    ran(data, "gc", "--yes", "--config", str(config))
    assert kept(data, f"work:{mail}") == ("expired", "expired")
    after = contamination(data)
    assert (after["sources"], after["calls"]) == (before["sources"], before["calls"])
    assert drawn(data) == (["read_mail"], ["deploy"])
    name = f"{after['session']}:{mail}"
    said = f"values of {name} may be missing: its content is gone (expired)"
    assert said in after["partial"]
    shown = json.loads(ran(data, "why", f"work:{deploy}", "/target", "--json"))
    (step,) = shown["steps"]
    assert (step["origin"]["seq"], step["end"], shown["value"]) == (mail, "gone", None)
    # With the bodies goes what they say of the inputs; that the output was marked stays.
    config.write_text("retention: {payloads: 7d, bodies: 30d}\n")
    ran(data, "gc", "--yes", "--config", str(config))
    assert drawn(data) == (["read_mail"], [])
    assert said in contamination(data)["partial"]
    done = turnlog("why", f"work:{deploy}", "/target", data=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is expired, and with it where its values came from" in done.stderr


@pytest.mark.promise("TAINT-6")
def test_what_was_purged_is_not_missed_and_only_what_was_flagged_is_left(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, settings={"rules": ["rules.yaml"]}) as proxy,
    ):
        mail, deploy = poisoned(Rig(upstream, proxy))
    ran(proxy.data, "purge", "work", "--yes")
    assert kept(proxy.data, mail) == ("purged", "purged")
    session_id = mail.partition(":")[0]
    found = json.loads(ran(proxy.data, "taint", "show", session_id, "--format", "json"))
    assert [one["tool"] for one in found["sources"]] == ["read_mail"]
    assert found["calls"] == []
    assert not any("may be missing" in said for said in found["partial"])
    assert any("content is gone" in said for said in found["partial"])
    done = turnlog("why", deploy, "/target", data=proxy.data)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is purged, and with it where its values came from" in done.stderr
