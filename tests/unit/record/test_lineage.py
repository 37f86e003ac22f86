"""`record.lineage`: look-ups and outputs in order, bounded, beside the calls."""

import asyncio
import json
from pathlib import Path

from msgspec import structs

from e2e.stores import Call, session_id, written
from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import SUCCESS, failed
from turnlog.core.commit import CommitBody, Lineage
from turnlog.core.kinds import (
    Effect,
    ErrorKind,
    Flag,
    MatchEvidence,
    NoteKind,
    Phase,
    Rung,
    ValueOrigin,
)
from turnlog.core.note import UserInput
from turnlog.exchange.outcome import AnswerFacts
from turnlog.observe.clock import Clock
from turnlog.provenance.values import MANY, OLDER
from turnlog.record.attempt import Ask, Attempt
from turnlog.record.input_gate import gated
from turnlog.redaction.redact import Redactor
from turnlog.rules.model import BlockIf
from turnlog.rules.policy import Policy
from turnlog.sessions.lineage.history import MOST_BYTES
from turnlog.sessions.lineage.taint import find_output
from turnlog.sessions.notes import NoteWriter
from turnlog.store.base import SessionRef, alias

PATH = "/srv/reports/q3-4711.txt"
ENDORSED = Flag.TAINT_ENDORSED
UNSEEN = Lineage(pointer="/path", origin=ValueOrigin.UNVERIFIED)


def answer(text: str) -> AnswerFacts:
    content = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
    return AnswerFacts(content=content, size=len(content), is_mcp=True, is_result=True)


async def begun(one: Bench, ref: SessionRef, path: str = "") -> Attempt:
    call = one.recorder.new_call()
    arguments = json.dumps({"path": path}).encode()
    return await one.recorder.begin(ask(ref, call, arguments=arguments, effect=Effect.READ))


async def rounds() -> None:
    """Let the loop go on with what is queued."""
    for _ in range(3):
        await asyncio.sleep(0)


async def made(one: Bench, ref: SessionRef, path: str = "", text: str = "done") -> Attempt:
    """Make a call, and wait until its outcome is on disk."""
    attempt = await begun(one, ref, path)
    await one.lineage.caught_up(ref)
    one.recorder.end(attempt, SUCCESS, answer(text))
    assert attempt.outcome is not None
    await attempt.outcome.done()
    return attempt


def body(attempt: Attempt) -> CommitBody:
    assert attempt.outcome is not None
    placed = attempt.outcome.placed
    assert placed is not None
    assert placed.body is not None
    return placed.body


def sourced(attempt: Attempt) -> tuple[Lineage, ...]:
    """Return the lineage of a call that was given the path that an attempt's output had."""
    place = "/content/0/text"
    entry = structs.replace(UNSEEN, origin=ValueOrigin.SOURCED, call=attempt.ask.call, place=place)
    return (structs.replace(entry, evidence=MatchEvidence.EXACT),)


async def test_a_look_up_is_done_beside_the_call(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        first = await made(one, ref, text=PATH)
        attempt = await begun(one, ref, PATH)
        assert attempt.inputs is None
        await rounds()
        assert attempt.inputs is not None
        assert attempt.inputs.lineage == sourced(first)


async def test_an_outcome_before_its_look_up_says_that_it_is_partial(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        first = await made(one, ref, text=PATH)
        attempt = await begun(one, ref, PATH)
        one.recorder.end(attempt, SUCCESS, answer("done"))
        assert attempt.outcome is not None
        await attempt.outcome.done()
        said = body(attempt)
        assert (said.lineage, said.partial) == ((), "the call ended before its input was looked up")
        # What it has returned counts all the same.
        assert body(await made(one, ref, PATH)).lineage == sourced(first)


async def test_the_input_of_a_call_that_was_not_sent_is_looked_up_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        first = await made(one, ref, text=PATH)
        attempt = await begun(one, ref, PATH)
        refused = failed(ErrorKind.POLICY_BLOCKED, Phase.QUEUED, Effect.READ)
        one.recorder.end(attempt, refused, AnswerFacts())
        assert attempt.outcome is not None
        await attempt.outcome.done()
        assert body(attempt).lineage == sourced(first)


async def test_a_look_up_waits_for_an_earlier_output_that_is_prepared_in_a_thread(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        await made(one, ref)
        large = await begun(one, ref)
        one.recorder.end(large, SUCCESS, answer(f"{PATH}\n{'x y ' * 40_000}"))
        attempt = await begun(one, ref, PATH)
        await rounds()
        memory = await one.lineage.caught_up(ref)
        assert len(memory.values) > 0
        assert attempt.inputs is not None
        (entry,) = attempt.inputs.lineage
        assert (entry.origin, entry.call) == (ValueOrigin.SOURCED, large.ask.call)
        assert attempt.inputs.partial == "first 64 KiB"


async def test_a_later_attempt_keeps_what_was_found_for_the_first(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        first = await made(one, ref, text=PATH)
        attempt = await begun(one, ref, PATH)
        await rounds()
        again = structs.replace(attempt.ask, number=2, inputs=attempt.inputs)
        second = await one.recorder.begin(again)
        assert second.inputs is not None
        assert second.inputs.lineage == sourced(first)


async def test_a_note_declares_values(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        await made(one, ref)
        assert ref.id is not None
        one.lineage.on_noted(ref.id, 7, UserInput(text=f"see {PATH}"))
        one.lineage.on_noted(bytes(16), 7, UserInput(text="of a session that was not met"))
        (entry,) = body(await made(one, ref, PATH)).lineage
        assert (entry.origin, entry.place) == (ValueOrigin.DECLARED, "7")


async def test_sessions_do_not_share_values(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await made(one, session("one"), text=PATH)
        assert body(await made(one, session("two"), PATH)).lineage == (UNSEEN,)


async def test_a_session_that_memory_has_no_room_for_is_read_again_from_the_store(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, bounds={"most_values": 10}) as one:
        first, second = session("first"), session("second")
        found = await made(one, first, text=PATH)
        before = await one.lineage.caught_up(first)
        await made(one, second, text=" ".join(f"id-{number:05}" for number in range(20)))
        await one.lineage.caught_up(second)
        attempt = await begun(one, first, PATH)
        assert await one.lineage.caught_up(first) is not before
        assert attempt.inputs is not None
        assert attempt.inputs.lineage == sourced(found)


async def test_content_that_waits_has_a_bound_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    async with bench(tmp_path, bounds={"most_waiting": 5000}) as one:
        ref = session()
        await made(one, ref)
        attempts = [await begun(one, ref, "x" * 1000) for _ in range(20)]
        one.recorder.end(attempts[-1], SUCCESS, answer("y" * 5000))
        left_out = [each.inputs.partial for each in attempts if each.inputs is not None]
        assert set(left_out) == {"too much waited to be looked at"}
        assert 0 < len(left_out) < len(attempts)
        await rounds()
        assert all(each.inputs is not None for each in attempts)
        attempt = await begun(one, ref, PATH)
        await rounds()
        assert attempt.inputs is not None
        said = "outputs were left out, because too much waited to be looked at"
        assert attempt.inputs.partial == said


async def test_an_output_that_was_left_out_and_may_be_tainted_is_read_for_a_rule(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, bounds={"most_waiting": 5000}) as one:
        ref = session()
        await made(one, ref)
        full = [await begun(one, ref, "x" * 1000) for _ in range(4)]
        failure = failed(ErrorKind.TOOL_FAILED, Phase.DONE, Effect.READ)
        one.recorder.end(full[0], failure, answer(f"{'y' * 5000} {PATH}"))
        memory = await one.lineage.caught_up(ref)
        assert (memory.unread, memory.partial, memory.values.missed) == ("", "", {})
        attempt = await begun(one, ref, PATH)
        await rounds()
        assert attempt.inputs is not None
        assert attempt.inputs.has_tainted


def gated_ask(one: Bench, ref: SessionRef, path: str) -> Ask:
    """Return a call that a rule keeps tainted values from."""
    policy = Policy(block_if=BlockIf.TAINTED, decided_by={"block_if": "no sending"})
    arguments = json.dumps({"path": path}).encode()
    return ask(ref, one.recorder.new_call(), arguments=arguments, policy=policy)


async def test_a_rule_refuses_while_the_store_cannot_be_read(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        await made(one, ref, text=PATH)
        assert not (await gated(one.lineage, one.store, gated_ask(one, ref, PATH))).is_blocked
        await one.store.close()
        unmet = session("other")
        refused = await gated(one.lineage, one.store, gated_ask(one, unmet, PATH))
        assert refused.gate.tainted == (
            "the rule 'no sending' refuses calls while tainted values may have been missed: "
            "earlier outputs could not be read; the next call tries it again"
        )
        passed = await gated(one.lineage, one.store, gated_ask(one, unmet, "main"))
        assert not passed.is_blocked


async def test_a_rule_refuses_while_marks_cannot_be_read(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        await made(one, ref, text=PATH)
        memory = await one.lineage.caught_up(ref)
        await one.store.close()
        assert not (await gated(one.lineage, one.store, gated_ask(one, ref, PATH))).is_blocked
        memory.controls -= 1  # as after an operator's mark
        assert (await gated(one.lineage, one.store, gated_ask(one, ref, PATH))).is_blocked


def written_session() -> SessionRef:
    """Return the session in which `written` writes."""
    name = alias(Rung.EXPLICIT, "work", "somebody")
    return SessionRef(candidate=session_id("work"), rung=Rung.EXPLICIT, aliases=(name,))


async def test_of_a_long_session_the_old_outputs_are_read_that_are_tainted(tmp_path: Path) -> None:
    marked = (Flag.TAINT_MARKED, Flag.TAINTED_OUT)
    old = [Call(tool="a", minute=0, output=PATH.encode(), flags=marked)]
    clean = [Call(tool="a", minute=0, output=b'"clean-4711"')]
    rest = [Call(tool="a", minute=1, output=b"lorem " * 20_000) for _ in range(70)]
    await written(tmp_path, [*old, *clean, *rest])
    async with bench(tmp_path) as one:
        ref = written_session()
        refused = await gated(one.lineage, one.store, gated_ask(one, ref, PATH))
        assert refused.is_blocked
        memory = await one.lineage.caught_up(ref)
        assert (memory.left_out, memory.values.missed) == (-1, {})
        passed = await gated(one.lineage, one.store, gated_ask(one, ref, "clean-4711"))
        assert not passed.is_blocked


async def test_of_old_tainted_outputs_only_so_much_is_read_and_a_rule_refuses_the_rest(
    tmp_path: Path,
) -> None:
    large = b"lorem ipsum\n" * (MOST_BYTES // 48)
    old = [Call(tool="a", minute=0, output=large, flags=(Flag.TAINT_MARKED,)) for _ in range(9)]
    await written(tmp_path, old)
    async with bench(tmp_path) as one:
        ref = written_session()
        refused = await gated(one.lineage, one.store, gated_ask(one, ref, PATH))
        assert "is followed by more tainted outputs than are read" in refused.gate.tainted


async def test_a_rule_finds_what_an_old_call_carried_on_that_was_not_looked_up_in_all_outputs(
    tmp_path: Path,
) -> None:
    flags = (Flag.TAINT_MARKED, Flag.TAINTED_OUT)
    used = json.dumps({"path": PATH}).encode()
    calls = [
        Call(tool="read", minute=0, output=PATH.encode(), flags=flags),
        Call(tool="make", minute=1, input=used, output=b'"made-8f3a9c21"', partial=OLDER),
        *[Call(tool="list", minute=2, output=b"lorem " * 20_000) for _ in range(70)],
    ]
    await written(tmp_path, calls)
    async with bench(tmp_path) as one:
        call = gated_ask(one, written_session(), "made-8f3a9c21")
        assert (await gated(one.lineage, one.store, call)).is_blocked


async def test_long_inputs_refuse_nothing_in_a_long_session_without_a_tainted_output(
    tmp_path: Path,
) -> None:
    text = json.dumps({"content": "lorem ipsum\n" * 6000}).encode()
    old = [Call(tool="write", minute=0, input=text, partial=MANY)] * (MOST_BYTES // len(text) + 9)
    rest = [Call(tool="a", minute=1, output=b"lorem " * 20_000) for _ in range(70)]
    await written(tmp_path, [*old, *rest], at_once=50)
    async with bench(tmp_path) as one:
        passed = await gated(one.lineage, one.store, gated_ask(one, written_session(), PATH))
        assert not passed.is_blocked


async def test_inputs_behind_a_tainted_output_refuse_nothing_as_long_as_they_are_looked_at(
    tmp_path: Path,
) -> None:
    flags = (Flag.TAINT_MARKED, Flag.TAINTED_OUT)
    marked = Call(tool="read", minute=0, output=b'"deploy-7f3a9c21"', flags=flags)
    text = json.dumps({"content": "lorem ipsum\n" * 3000}).encode()
    few = [Call(tool="a", minute=1, input=text) for _ in range(MOST_BYTES // len(text) + 9)]
    await written(tmp_path / "few", [marked, *few], at_once=50)
    await written(tmp_path / "many", [marked, *few * 4], at_once=50)
    refused = dict[str, bool]()
    for data in ("few", "many"):
        async with bench(tmp_path / data) as one:
            call = gated_ask(one, written_session(), PATH)
            refused[data] = (await gated(one.lineage, one.store, call)).is_blocked
    assert refused == {"few": False, "many": True}


async def test_a_mark_made_while_the_past_of_its_session_is_read_counts(tmp_path: Path) -> None:
    async with bench(tmp_path) as one, asyncio.TaskGroup() as work:
        ref = session()
        await made(one, ref, text=PATH)
        memory = await one.lineage.caught_up(ref)
        memory.is_reading = True  # as if it had begun before the mark
        with one.store.view() as view:
            output = find_output(view, view.session_of(ref) or b"", 1)
        noter = NoteWriter(one.store, Redactor(), Clock())
        await noter.mark_output(output, NoteKind.TAINT, "forged")
        one.store.control_counter().read()  # as each call does
        call = work.create_task(gated(one.lineage, one.store, gated_ask(one, ref, PATH)))
        await rounds()
        memory.is_reading = False
        await made(one, session("other"))
    assert call.result().is_blocked


async def test_the_input_of_a_call_that_was_long_under_way_is_read_from_the_store(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as one:
        ref = session()
        await made(one, ref)
        bad = await begun(one, ref)
        failure = failed(ErrorKind.TOOL_FAILED, Phase.DONE, Effect.READ)
        one.recorder.end(bad, failure, answer(PATH))
        arguments = json.dumps({"script": f"{'lorem ipsum ' * 9000} {PATH}"}).encode()
        call = ask(ref, one.recorder.new_call(), arguments=arguments, size=len(arguments))
        attempt = await one.recorder.begin(call)
        assert attempt.intent is not None
        await attempt.intent.done()
        attempt.shrink()
        assert not attempt.ask.arguments
        one.recorder.end(attempt, SUCCESS, answer("made-8f3a9c21"))
        refused = await gated(one.lineage, one.store, gated_ask(one, ref, "made-8f3a9c21"))
        assert refused.is_blocked


async def test_a_rule_finds_what_calls_carried_on_before_an_old_tainted_output_was_known(
    tmp_path: Path,
) -> None:
    marked = (Flag.TAINT_MARKED, Flag.TAINTED_OUT)
    used = json.dumps({"path": PATH}).encode()
    calls = [
        Call(tool="read", minute=0, output=PATH.encode(), flags=marked),
        *[Call(tool="list", minute=1, output=b"lorem " * 20_000) for _ in range(70)],
        # It has no flag, as when it was made the first output was not in memory.
        Call(tool="make", minute=2, input=used, output=b'"made-8f3a9c21"'),
        Call(tool="make", minute=3, output=b'"clean-55d01e77"'),
        Call(tool="check", minute=4, input=used, output=b'"fine-90ab34cd"', flags=(ENDORSED,)),
    ]
    await written(tmp_path, calls)
    async with bench(tmp_path) as one:
        ref = written_session()
        refused = [
            (await gated(one.lineage, one.store, gated_ask(one, ref, value))).is_blocked
            for value in ("made-8f3a9c21", "clean-55d01e77", "fine-90ab34cd")
        ]
    assert refused == [True, False, False]
