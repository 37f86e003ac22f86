"""A hundred thousand calls of an agent that loses answers, gives up and asks again, on a clock of the
test: what is decided is `exchange.duplicates`, what really happened is counted beside it."""

import random
from collections import Counter

import pytest
from msgspec import Struct

from turnlog.core.classify import Ending, failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Executed, Phase, Status
from turnlog.exchange.duplicates import (
    DuplicateAction,
    EarlierCall,
    NeverTwice,
    NewCall,
    decide_duplicate,
)

CALLS = 100_000
SEED = 7
LIMITS = NeverTwice()
EFFECTS = (Effect.IDEMPOTENT_WRITE, Effect.WRITE, Effect.IRREVERSIBLE)


class Sent(Struct):
    """A call that was sent, as turnlog knows it, and what it did, as only the server knows."""

    began: float
    ends: float
    ending: Ending
    did: bool
    left: float | None
    """When its caller left."""
    delivered: bool = False
    warned: bool = False

    def seen(self, now: float) -> EarlierCall:
        running = now < self.ends
        return EarlierCall(
            ending=None if running else self.ending,
            began=now - self.began,
            ended=0.0 if running else now - self.ends,
            abandoned=self.left is not None and self.left <= now,
            delivered=not running and self.delivered,
            warned=self.warned,
        )


class World:
    """One effect that an agent wants once, asks for as often as it has to, and counts."""

    def __init__(self, dice: random.Random, effect: Effect) -> None:
        self.dice = dice
        self.asked = NewCall(effect=effect)
        self.effect = effect
        self.now = 0.0
        self.last: Sent | None = None
        self.excuses = 0
        """Times that the log shows why the effect may have happened once more."""
        self.did = 0
        self.verdicts: Counter[DuplicateAction] = Counter()

    def call(self) -> bool:
        """Ask; return whether the agent has an answer with which it is content."""
        while True:
            earlier = self.last.seen(self.now) if self.last is not None else None
            verdict = decide_duplicate(earlier, self.asked, LIMITS)
            if verdict is not DuplicateAction.JOIN:
                break
            assert self.last is not None
            self.now = self.last.ends
            self.last.delivered = False
        self.verdicts[verdict] += 1
        match verdict:
            case DuplicateAction.FORWARD | DuplicateAction.AGAIN:
                return self._send(verdict)
            case DuplicateAction.REPLAY:
                assert self.last is not None
                self.last.delivered = self.dice.random() < 0.8
                return self.last.delivered
            case _:
                assert self.last is not None
                self.last.warned = True
                return False

    def _send(self, verdict: DuplicateAction) -> bool:
        before = self.last
        if before is not None and before.did:
            told = before.delivered or verdict is DuplicateAction.AGAIN
            expired = self.now - before.ends > LIMITS.window
            young = self.now < before.ends and self.now - before.began < LIMITS.join_after
            assert told or expired or young, (before, self.now)
            self.excuses += 1
        ending, did = self._fate()
        took = self.dice.choice((0.1, 3.0, 30.0))
        left = self.now + took * self.dice.random() if self.dice.random() < 0.4 else None
        self.last = Sent(began=self.now, ends=self.now + took, ending=ending, did=did, left=left)
        self.did += did
        if left is not None:
            self.now = left
            return False
        self.now = self.last.ends
        self.last.delivered = self.dice.random() < 0.9
        return self.last.delivered and not ending.error

    def _fate(self) -> tuple[Ending, bool]:
        """Return how an attempt ends, and whether it did what it was for."""
        fate = self.dice.random()
        if fate < 0.6:
            return succeeded(), True
        if fate < 0.7:
            return failed(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, self.effect), False
        if fate < 0.8:
            return refused(ErrorKind.RATE_LIMITED, self.effect), False
        did = self.dice.random() < 0.5
        return failed(ErrorKind.CONNECTION_LOST, Phase.SENT, self.effect), did


@pytest.mark.promise("TWICE-29")
def test_an_effect_happens_again_only_where_the_log_says_why() -> None:
    dice = random.Random(SEED)
    verdicts: Counter[DuplicateAction] = Counter()
    calls = 0
    while calls < CALLS:
        world = World(dice, dice.choice(EFFECTS))
        content = False
        for _ in range(dice.randint(1, 8)):
            content = world.call()
            calls += 1
            if content:
                break
            world.now += dice.choice((0.0, 1.0, 6.0, 60.0, 700.0))
        assert world.did <= 1 + world.excuses
        if world.effect is Effect.IRREVERSIBLE and world.last is not None:
            assert world.verdicts[DuplicateAction.AGAIN] == 0
        verdicts += world.verdicts
    assert verdicts[DuplicateAction.REPLAY] > 1000
    assert verdicts[DuplicateAction.UNKNOWN] > 1000
    assert verdicts[DuplicateAction.AGAIN] > 1000


@pytest.mark.promise("TWICE-28")
def test_what_was_not_executed_is_always_asked_anew() -> None:
    for effect in EFFECTS:
        ending = failed(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, effect)
        assert (ending.executed, ending.status) == (Executed.NO, Status.ERROR)
        earlier = EarlierCall(ending=ending, began=2.0, ended=1.0)
        assert decide_duplicate(earlier, NewCall(effect=effect), LIMITS) is DuplicateAction.FORWARD
