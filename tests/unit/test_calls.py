from kit.attempts import ask, session
from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind
from turnlog.serve.attempt import Attempt
from turnlog.serve.calls import DETACHED_LIFE, OpenCalls

HERE = ("files", "session-1")
THERE = ("files", "session-2")


def attempt(name: str = "a") -> Attempt:
    asked = ask(session(), name.encode().ljust(16, b"\0"))
    return Attempt(asked, Facts(kind=CommitKind.INTENT, at=0, clock=0), 0, waits=True)


def test_a_call_is_open_until_it_is_removed() -> None:
    calls, first = OpenCalls(), attempt()
    calls.add(HERE, "1", first)
    assert calls.has(HERE, "1")
    assert (calls.of(HERE), calls.of(THERE)) == ([first], [])
    calls.remove(HERE, "1", first)
    assert (calls.has(HERE, "1"), calls.of(HERE)) == (False, [])


def test_the_same_id_elsewhere_or_of_another_type_is_another_call() -> None:
    calls = OpenCalls()
    calls.add(HERE, "1", attempt())
    assert not calls.has(THERE, "1")
    assert not calls.has(HERE, '"1"')


def test_removing_one_of_two_calls_with_one_id_leaves_the_other() -> None:
    calls, first, second = OpenCalls(), attempt("a"), attempt("b")
    calls.add(HERE, "1", first)
    calls.add(HERE, "1", second)
    calls.remove(HERE, "1", first)
    calls.remove(HERE, "1", first)
    assert calls.of(HERE) == [second]


def test_a_cancellation_means_the_newest_call_with_that_id() -> None:
    calls, first, second = OpenCalls(), attempt("a"), attempt("b")
    calls.add(HERE, "1", first)
    calls.add(HERE, "1", second)
    calls.cancel(HERE, "1")
    calls.cancel(THERE, "1")
    calls.cancel(HERE, "2")
    assert (first.cancelled, second.cancelled) == (False, True)


def test_an_answer_elsewhere_claims_the_call_whose_own_stream_ended() -> None:
    calls, ended, running = OpenCalls(), attempt("a"), attempt("b")
    calls.add(HERE, "1", ended)
    calls.add(HERE, "1", running)
    calls.detach(HERE, "1", ended, 0)
    assert calls.claim(HERE, "1") is ended
    assert calls.of(HERE) == [running]


def test_an_answer_elsewhere_claims_a_running_call_where_no_other_waits() -> None:
    calls, running = OpenCalls(), attempt()
    calls.add(HERE, "1", running)
    assert calls.claim(THERE, "1") is None
    assert calls.claim(HERE, "1") is running
    assert calls.claim(HERE, "1") is None
    assert calls.of(HERE) == []


def test_a_detached_call_that_nobody_resumes_is_overdue_in_the_end() -> None:
    calls, early, late = OpenCalls(), attempt("a"), attempt("b")
    for key, each, at in (("1", early, 0), ("1", late, 5), ("2", attempt("c"), 7)):
        calls.add(HERE, key, each)
        calls.detach(HERE, key, each, at)
    assert calls.overdue(DETACHED_LIFE - 1) == []
    assert calls.overdue(DETACHED_LIFE + 4) == [early]
    assert calls.overdue(DETACHED_LIFE + 4) == []
    assert (len(calls.of(HERE)), calls.claim(HERE, "1")) == (2, late)


def test_all_detached_calls_can_be_taken_and_running_ones_stay() -> None:
    calls, running, detached = OpenCalls(), attempt("a"), attempt("b")
    calls.add(HERE, "1", running)
    calls.add(THERE, "1", detached)
    calls.detach(THERE, "1", detached, 0)
    assert calls.everything_detached() == [detached]
    assert calls.everything_detached() == []
    assert calls.of(HERE) == [running]


def test_a_parked_call_is_found_by_any_of_its_keys_until_it_went_on() -> None:
    calls, first = OpenCalls(), attempt()
    calls.park((b"a", b"b"), first)
    assert calls.parked((b"x", b"b")) is first
    calls.unpark((b"b", b"unknown"))
    assert calls.parked((b"b",)) is None
    assert calls.parked((b"a",)) is first


def test_parked_calls_do_not_grow_without_bound() -> None:
    calls, first = OpenCalls(), attempt()
    for number in range(70_000):
        calls.park((number.to_bytes(4, "big"),), first)
    assert calls.parked(((0).to_bytes(4, "big"),)) is None
    assert calls.parked(((69_999).to_bytes(4, "big"),)) is first
