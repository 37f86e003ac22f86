"""Operators who are killed in the middle of a change, or change a session at once."""

import asyncio
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance.store import kit
from e2e.stores import Done, process
from kit import prefork
from turnlog.core.lifecycle import Action, action_of, after_control, decode_lifecycle
from turnlog.store.lmdb import LmdbReader, LmdbStore

KILLS = 12


def filled(data: Path) -> None:
    """Make a store with the session `work`."""

    async def fill() -> None:
        store = LmdbStore.open(data)
        await kit.whole_call(store, kit.session("work"))
        await store.close()

    asyncio.run(fill())


def killed(data: Path, after: int) -> int:
    """Kill an operator behind so many changes; return the seq of its last."""
    newest = 0
    with prefork.printing("faults.control_child", str(data)) as child:
        for number, line in enumerate(child.printed, 1):
            newest = int(line)
            if number == after:
                child.process.kill()
    return newest


@pytest.mark.promise("SESS-12")
def test_a_change_whose_writer_is_killed_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    filled(tmp_path)
    dice = random.Random(18)
    for _ in range(KILLS):
        newest = killed(tmp_path, dice.randint(1, 9))
        with LmdbReader.open(tmp_path) as reader, reader.view() as view:
            (row,) = view.sessions()
            assert row.head_seq >= newest
            controls = list(view.controls(row.session))
            folded = None
            for commit in controls:
                folded = after_control(folded, commit.facts, commit.link.seq)
            assert row.control == folded
            named = [
                decode_lifecycle(commit.body.note).name
                for commit in controls
                if commit.body and action_of(commit.facts) is Action.ALIAS
            ]
            # A name stands exactly where its commit does.
            assert len(row.aliases) == 1 + len(named)
            assert all(view.find_sessions(name) == [row.session] for name in named)
            assert list(view.index_flaws()) == []
        store = asyncio.run(opened_count(tmp_path))
        assert store == len(controls)


async def opened_count(data: Path) -> int:
    """Return the store's own number of control commits."""
    store = LmdbStore.open(data)
    count = store.control_counter().read()
    await store.close()
    return count


@pytest.mark.promise("SESS-13")
def test_of_two_operators_who_race_one_succeeds_and_the_other_gets_the_head(
    tmp_path: Path,
) -> None:
    filled(tmp_path)
    head = 2
    # A second claim would be refused for the lease of the first.
    rounds = ("pause", "claim"), ("resume", "alias"), ("pause", "alias")
    for round_, actions in enumerate(rounds):

        def run(action: str, head: int = head, name: str = f"n{round_}") -> Done:
            words = [action, "work", *([name] if action == "alias" else [])]
            more = ("--expect", str(head), "--json", "--data", str(tmp_path))
            return process("sessions", *words, *more)

        with ThreadPoolExecutor(2) as threads:
            done = list(threads.map(run, actions))
        won = [one for one in done if one.returncode == 0]
        lost = [one for one in done if one.returncode != 0]
        assert (len(won), len(lost)) == (1, 1), [one.stderr for one in done]
        assert json.loads(won[0].stdout)["seq"] == head + 1
        assert lost[0].returncode == 2
        assert f"the session's newest commit is {head + 1}, not {head}" in lost[0].stderr
        head += 1
        if json.loads(won[0].stdout)["action"] != actions[0]:
            # The next round needs the stage that the other would have brought.
            again = run(actions[0], head)
            assert again.returncode == 0, again.stderr
            head += 1
