"""Rules of retention against a model that knows each call's server, session, day and content."""

import math
import random
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from msgspec import Struct

from conformance.store.kit import known, session
from turnlog.core.commit import Commit
from turnlog.core.kinds import Gone
from turnlog.sessions.payloads import PayloadState, read_payload
from turnlog.sessions.retention.ages import Retention, RetentionRule
from turnlog.store.base import SessionRef
from turnlog.store.lmdb import DAY
from unit.sessions.test_retention import SECOND, TODAY, Days, verdicts

AGES = (86_400.0, 3 * 86_400.0, 7 * 86_400.0, 20 * 86_400.0, math.inf)
SERVERS = ("bank", "files", "mail", "web")
NAMES = ("a1", "a2", "b")


class Called(Struct, frozen=True):
    """One call of the model."""

    name: str
    server: str
    day: int
    content: bytes


def some_retention(dice: random.Random) -> Retention:
    rules = [
        RetentionRule(
            server=dice.choice([("*",), ("bank",), ("files", "mail")]),
            session=dice.choice([("*",), ("a*",), ("b",)]),
            payloads=dice.choice([None, *AGES]),
            bodies=dice.choice(AGES),
        )
        for _ in range(dice.randrange(4))
    ]
    return Retention(payloads=dice.choice(AGES), bodies=dice.choice(AGES), rules=tuple(rules))


def age_of(what: str, call: Called, retention: Retention) -> float:
    """Return the age by the first rule that matches, read anew from the rules' definition."""
    for rule in retention.rules:
        is_about = any(fnmatchcase(call.server, glob) for glob in rule.server)
        is_about &= any(fnmatchcase(call.name, glob) for glob in rule.session)
        age: float | None = getattr(rule, what)
        if is_about and age is not None:
            return age
    default: float = getattr(retention, what)
    return default


def has_body(call: Called, retention: Retention, now: int) -> bool:
    age = age_of("bodies", call, retention)
    written = TODAY + call.day * DAY
    return age == math.inf or written >= (now - int(age * SECOND)) // DAY * DAY


def is_kept(call: Called, retention: Retention, now: int) -> bool:
    age = (now - TODAY - (call.day + 1) * DAY) / SECOND
    return age < age_of("payloads", call, retention)


@pytest.mark.promise("STORE-22")
@pytest.mark.parametrize("seed", range(8))
async def test_what_goes_and_what_stays_is_as_the_rules_say(tmp_path: Path, seed: int) -> None:
    dice, days = random.Random(seed), Days(tmp_path / "data")
    retention = some_retention(dice)
    refs, calls = {name: session(name) for name in NAMES}, list[Called]()
    for day in sorted(dice.randrange(-30, -1) for _ in range(20)):
        content = dice.choice([b"shared", b"own %d" % len(calls)])
        one = Called(dice.choice(NAMES), dice.choice(SERVERS), day, content)
        await days.call(refs[one.name], one.day, one.content, server=one.server)
        calls.append(one)

    for later in (0, 4, 9):
        days.now = TODAY + later * DAY
        await days.lines(retention)
        assert await days.lines(retention) == []
        for name in {call.name for call in calls}:
            mine = [call for call in calls if call.name == name]
            commits = call_commits(days, refs[name])
            assert len(commits) == 2 * len(mine)
            for number, commit in enumerate(commits):
                check(days, commit, mine[number // 2], calls, retention)
    assert set(verdicts(days.data)) <= {"ok", "redacted_ok"}
    await days.close()


def call_commits(days: Days, ref: SessionRef) -> list[Commit]:
    with days.store.view() as view:
        return [commit for commit in view.commits(known(ref)) if commit.facts.call]


def check(
    days: Days, commit: Commit, call: Called, calls: list[Called], retention: Retention
) -> None:
    if not has_body(call, retention, days.now):
        assert commit.gone is Gone.EXPIRED
        return
    assert commit.body is not None
    with days.store.view() as view:
        kept = read_payload(view, commit.body.input_blob or commit.body.output_blob).kept
    sharing = [one for one in calls if (one.day, one.content) == (call.day, call.content)]
    if any(is_kept(o, retention, days.now) for o in sharing if has_body(o, retention, days.now)):
        assert kept is PayloadState.WHOLE
    # What keeps a content may have lost its body before.
    if not any(is_kept(one, retention, days.now) for one in sharing):
        assert kept is PayloadState.EXPIRED
