import msgspec

from kit.commits import Log
from turnlog.core.commit import Commit
from turnlog.core.live_view import (
    CallStarts,
    ForkContent,
    ForkMode,
    LiveView,
    Rewind,
    RewindContent,
    counts,
    decode_fork,
    decode_rewind,
    is_detached,
    live_commits,
    live_view,
)
from turnlog.core.note import Decision


def look_up(_: bytes) -> int | None:
    return None


def seqs(view: LiveView, commits: list[Commit]) -> list[int]:
    return [commit.link.seq for commit in live_commits(view, commits, CallStarts(look_up))]


def test_without_rewinds_every_commit_counts() -> None:
    assert live_view(7, ()) == LiveView(((0, 7),))
    assert live_view(7, ()).is_whole


def test_a_rewind_discards_what_lies_between_it_and_its_target() -> None:
    view = live_view(9, [Rewind(seq=7, target=3)])
    assert view == LiveView(((7, 9), (0, 3)))
    assert [view.has(seq) for seq in (3, 4, 6, 7)] == [True, False, False, True]
    assert [view.before(seq) for seq in (2, 5, 8)] == [2, 3, 8]
    assert not view.is_whole
    assert view.newest == 9


def test_a_rewind_to_the_commit_before_it_discards_nothing() -> None:
    assert live_view(9, [Rewind(seq=7, target=6)]).is_whole


def test_a_rewind_to_a_discarded_commit_takes_the_rewind_back() -> None:
    first, back = Rewind(seq=7, target=3), Rewind(seq=9, target=6)
    assert live_view(9, [first, back]) == LiveView(((9, 9), (0, 6)))


def test_a_late_outcome_counts_if_its_call_began_before_the_cut() -> None:
    log = Log()
    log.begin("before")
    cut = log.note(Decision(text="here"))
    log.begin("behind")
    rewound = log.rewind(cut)
    late, detached = log.end("before"), log.end("behind")
    view = live_view(log.seq, [Rewind(seq=rewound, target=cut)])
    assert seqs(view, log.commits) == [0, 1, cut, rewound, late]
    starts = CallStarts({c.facts.call: c.link.seq for c in reversed(log.commits)}.get)
    assert [counts(view, c, starts) for c in log.commits] == [
        True,
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    assert [c.link.seq for c in log.commits if is_detached(view, c, starts)] == [detached]


def test_a_call_that_began_before_what_is_read_is_looked_up() -> None:
    log = Log()
    begun = log.begin("call")
    outcome = log.commits[log.end("call")]
    starts = CallStarts(lambda _: begun)
    assert counts(live_view(9, [Rewind(seq=5, target=1)]), outcome, starts)
    assert not counts(live_view(9, [Rewind(seq=5, target=0)]), outcome, starts)
    assert not counts(live_view(9, [Rewind(seq=5, target=1)]), outcome, CallStarts(look_up))


def test_a_kept_call_counts_although_what_is_around_it_does_not() -> None:
    log = Log()
    log.call("discarded")
    begun = log.begin("kept")
    ended = log.end("kept")
    rewound = log.rewind(0)
    view = live_view(log.seq, [Rewind(seq=rewound, target=0, keep=frozenset({begun}))])
    assert seqs(view, log.commits) == [0, begun, ended, rewound]


def test_a_fold_is_not_continued_past_a_call_that_is_kept_on_another_branch() -> None:
    back = Rewind(seq=20, target=15, keep=frozenset({8}))
    view = live_view(21, [Rewind(seq=11, target=5), back])
    assert view.continues(5)
    assert not view.continues(13)
    assert not view.continues(7)
    assert view.continues(20)


def test_a_view_extends_an_earlier_one_if_no_rewind_lies_between() -> None:
    first = Rewind(seq=7, target=3)
    assert live_view(9, [first]).extends(live_view(8, [first]))
    assert not live_view(9, [first]).extends(live_view(6, ()))
    assert not live_view(9, [first, Rewind(seq=9, target=3)]).extends(live_view(8, [first]))
    assert live_view(9, ()).extends(live_view(6, ()))


def test_two_views_meet_at_the_newest_commit_that_is_on_both_paths() -> None:
    first, back = Rewind(seq=7, target=3), Rewind(seq=9, target=6)
    assert live_view(8, [first]).common_ancestor(live_view(6, ())) == 3
    assert live_view(9, [first, back]).common_ancestor(live_view(8, [first])) == 3
    assert live_view(9, [first, back]).common_ancestor(live_view(5, ())) == 5


def test_content_of_a_fork_that_cannot_be_read_is_that_of_a_live_one() -> None:
    content = ForkContent(mode=ForkMode.REPLAY, standing=(5,))
    assert decode_fork(msgspec.msgpack.encode(content)) == content
    assert decode_fork(b"\xc1") == ForkContent()


def test_content_of_a_rewind_that_cannot_be_read_keeps_nothing() -> None:
    content = RewindContent(keep=(3,), groups={"stands": 1}, standing=(5,))
    assert decode_rewind(msgspec.msgpack.encode(content)) == content
    assert decode_rewind(msgspec.msgpack.encode([[3]])) == RewindContent(keep=(3,))
    assert decode_rewind(b"\xc1") == RewindContent()


def test_two_views_agree_up_to_where_a_rewind_parts_them() -> None:
    before, after = live_view(9, ()), live_view(10, [Rewind(seq=10, target=4)])
    assert all(after.agrees(before, until) for until in range(5))
    assert not any(after.agrees(before, until) for until in range(5, 10))


def test_a_call_that_is_kept_off_the_path_counts_in_the_comparison() -> None:
    kept = live_view(10, [Rewind(seq=10, target=4, keep=frozenset({6}))])
    plain = live_view(10, [Rewind(seq=10, target=4)])
    assert kept.agrees(plain, 5)
    assert not kept.agrees(plain, 6)
    on_path = live_view(10, [Rewind(seq=10, target=4, keep=frozenset({2, 6}))])
    assert kept.agrees(on_path, 8)
