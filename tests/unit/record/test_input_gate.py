"""Random sessions: no rule lets pass what the log shows to be tainted, whatever happened to the proxy."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from msgspec import structs

from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import SUCCESS, failed
from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind, Effect, ErrorKind, Flag, Phase
from turnlog.exchange.outcome import AnswerFacts
from turnlog.provenance.taint import TaintFold
from turnlog.record.input_gate import gated
from turnlog.rules.model import BlockIf, TaintAction
from turnlog.rules.policy import Policy
from turnlog.store.base import SessionRef

PADDING = "lorem ipsum\n" * 7000
DONE = Facts(kind=CommitKind.OUTCOME, at=0, clock=0, phase=Phase.DONE)
MARKS = {TaintAction.MARK: Flag.TAINT_MARKED, TaintAction.ENDORSE: Flag.TAINT_ENDORSED, None: None}


class World:
    """A session with the values that were seen in it, and what its log shows of them."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.fold = TaintFold({})
        self.seen = ["first-112233a"]
        self.made = 0

    def text(self) -> str:
        """Return a text with a new value, and perhaps an old one, that may stand far behind."""
        self.made += 1
        new = f"value-{self.dice.randrange(1 << 40):x}-{self.made}"
        old = self.dice.choice(self.seen) if self.dice.random() < 0.3 else ""
        self.seen.append(new)
        return " ".join([PADDING if self.dice.random() < 0.1 else "", old, new])

    def arguments(self) -> bytes:
        path = self.dice.choice(self.seen)
        return json.dumps({"p": PADDING if self.dice.random() < 0.1 else "", "path": path}).encode()

    async def call(self, one: Bench, ref: SessionRef) -> None:
        """Make a call, which may end before its input was looked up."""
        taint = self.dice.choice([None, None, None, None, TaintAction.MARK, TaintAction.ENDORSE])
        is_bad = self.dice.random() < 0.1
        arguments, text = self.arguments(), self.text()
        asked = ask(ref, one.recorder.new_call(), arguments=arguments, effect=Effect.READ)
        asked = structs.replace(asked, size=len(arguments) + 90, policy=Policy(taint=taint))
        attempt = await one.recorder.begin(asked)
        if self.dice.random() < 0.6:
            await one.lineage.caught_up(ref) if self.dice.random() < 0.1 else await asyncio.sleep(0)
        content = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
        ending = failed(ErrorKind.TOOL_FAILED, Phase.DONE, Effect.READ) if is_bad else SUCCESS
        reply = AnswerFacts(content=content, size=len(content), is_mcp=True, is_result=True)
        one.recorder.end(attempt, ending, reply)
        assert attempt.outcome is not None
        # What is large is prepared in a thread, so what follows could come before it in the log.
        if self.dice.random() < 0.5 or PADDING in text:
            await attempt.outcome.done()
        key = asked.call, 1
        flag = MARKS[taint]
        facts = structs.replace(DONE, bytes_out=len(content), flags=(flag,) if flag else ())
        if is_bad:
            facts = structs.replace(facts, error="tool_error", error_kind="tool_failed")
        self.fold.on_input(key, lambda: (arguments, False))
        self.fold.on_output(key, facts, content, own_input=lambda: arguments)

    async def check(self, one: Bench, ref: SessionRef) -> None:
        """Ask a rule about a value; compare with what the log shows."""
        policy = Policy(block_if=BlockIf.TAINTED, decided_by={"block_if": "no sending"})
        arguments = self.arguments()
        asked = ask(ref, one.recorder.new_call(), arguments=arguments, policy=policy)
        found = await gated(one.lineage, one.store, asked)
        key = asked.call, 1
        self.fold.on_input(key, lambda: (arguments, False))
        is_tainted = bool(self.fold.on_output(key, DONE, b"").carried)
        assert found.is_blocked is is_tainted, (arguments[-60:], found.gate)


@pytest.mark.parametrize("seed", range(6))
def test_a_rule_lets_pass_what_the_log_shows_to_be_clean_and_nothing_else(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    world = World(dice)

    async def go_on(part: int) -> None:
        async with bench(tmp_path) as one:
            ref = session()
            for _ in range(100 * part):
                one.recorder.new_call()  # ids of an earlier part are taken
            for _ in range(dice.randrange(5, 20)):
                await (world.check if dice.random() < 0.4 else world.call)(one, ref)

    for part in range(3):
        asyncio.run(go_on(part))
