"""`engine.request_identity`: which sessions an agent may mean that asks turnlog itself."""

import hmac
from typing import Any

import pytest

from turnlog.core.identity import CallerEvidence, Vendor
from turnlog.core.kinds import Rung
from turnlog.engine.request_identity import IDLE_GAP, Client, Sessions
from turnlog.observe.clock import Clock
from turnlog.redaction.redact import Redactor
from turnlog.store.base import SessionRef, alias

VENDORS = (Vendor(name="acme", session=(("acme/chat",),)),)


class Met:
    """Sessions on a clock of the test's own; each is on disk as soon as it was met."""

    def __init__(self) -> None:
        self.now = 0
        dice = iter(range(1000))
        clock = Clock(
            wall=lambda: 10**18,
            monotonic=lambda: self.now,
            entropy=lambda size: next(dice).to_bytes(size, "big"),
        )
        self.sessions = Sessions(clock, VENDORS, _clean, _digest)

    def call(self, **evidence: Any) -> SessionRef:
        ref = self.sessions.find(self.sessions.identify(_evidence(**evidence)), Client())
        ref.id = ref.id or ref.candidate
        return ref

    def own(self, **evidence: Any) -> list[SessionRef]:
        return self.sessions.own(_evidence(**evidence), Client())


def _clean(text: str) -> str:
    return Redactor().text(text)[0]


def _digest(data: bytes) -> bytes:
    return hmac.digest(b"key", data, "sha256")


def _evidence(**evidence: Any) -> CallerEvidence:
    shown: dict[str, Any] = {"credential": "key", "client_name": "agent"} | evidence
    return CallerEvidence(**shown)


@pytest.fixture
def met() -> Met:
    return Met()


@pytest.mark.parametrize("call", [{}, {"mcp_session_id": "1"}, {"path_session": "run"}])
def test_it_is_the_one_of_its_credential_and_client(met: Met, call: dict[str, Any]) -> None:
    ref = met.call(**call)
    assert met.own() == [ref]
    assert met.own(credential="") == []
    assert met.own(client_name="") == []


@pytest.mark.promise("AGENT-3")
def test_all_that_it_may_be_are_told(met: Met) -> None:
    first, second = met.call(mcp_session_id="1"), met.call(mcp_session_id="2")
    assert met.own() == [second, first]


def test_one_that_was_quiet_for_long_is_none(met: Met) -> None:
    met.call(mcp_session_id="1")
    met.now = 1
    second = met.call(mcp_session_id="2")
    met.now = IDLE_GAP + 1
    assert met.own() == [second]
    met.now = IDLE_GAP + 2
    assert met.own() == []


def test_one_that_no_commit_is_of_is_none(met: Met) -> None:
    met.sessions.find(met.sessions.identify(_evidence()), Client())
    assert met.own() == []


def test_a_caller_without_any_identification_has_no_session(met: Met) -> None:
    met.call(credential="", client_name="", connection=7)
    assert met.own(credential="", client_name="", connection=7) == []


@pytest.mark.parametrize(
    ("named", "rung", "name"),
    [
        ({"path_session": "run"}, Rung.EXPLICIT, "run"),
        ({"header_session": "run"}, Rung.EXPLICIT, "run"),
        ({"meta": {"turnlog/session": b'"run"'}}, Rung.EXPLICIT, "run"),
        ({"meta": {"acme/chat": b'"7"'}}, Rung.VENDOR, "acme/7"),
    ],
)
def test_a_name_counts_alone_and_for_its_credential(
    met: Met, named: dict[str, Any], rung: Rung, name: str
) -> None:
    met.call()
    (ref,) = met.own(**named)
    assert ref.aliases == (alias(rung, name, "key"),)
    assert met.call(**named) is ref
    (other,) = met.own(**named, credential="another")
    assert other is not ref


GITHUB = "ghp_" + "a8Zk3Lq9Xw2Mv7Bn4Rt6Yc1Ph5Ds0Jf8Ge"
OTHER = "ghp_" + "b8Zk3Lq9Xw2Mv7Bn4Rt6Yc1Ph5Ds0Jf8Ge"


@pytest.mark.parametrize("where", ["path_session", "header_session"])
def test_sessions_whose_names_hold_secrets_go_by_digests(met: Met, where: str) -> None:
    one, other = met.call(**{where: GITHUB}), met.call(**{where: OTHER})
    assert one is not other
    assert met.call(**{where: GITHUB}) is one
    assert met.own(**{where: GITHUB}) == [one]
    for ref in (one, other):
        (name,) = ref.aliases
        assert name.startswith("hmac-sha256:")
        assert GITHUB not in name


@pytest.mark.parametrize(
    "shown",
    [
        {"header_turn": GITHUB, "client_name": f"agent {GITHUB}"},
        {"meta": {"turnlog/turn": f'"{GITHUB}"'.encode()}, "client_name": f"agent {GITHUB}"},
    ],
)
def test_turns_and_clients_are_told_without_their_secrets(met: Met, shown: dict[str, Any]) -> None:
    meant = met.sessions.identify(_evidence(**shown))
    ref, found = met.sessions.find(meant, Client()), meant
    assert (found.turn_label, found.client) == ("[redacted]", "agent [redacted]")
    assert ref.metadata["client"] == "agent [redacted]"
