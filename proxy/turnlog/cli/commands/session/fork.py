"""`turnlog fork`: a new session that goes on behind a commit of another one."""

import click

from turnlog.cli.failures import complain
from turnlog.cli.options import (
    WrittenStore,
    fence_option,
    json_option,
    open_view,
    printout,
    word_of,
    writing_options,
)
from turnlog.cli.render import json_line
from turnlog.core.live_view import AfterDivergence, ForkMode
from turnlog.core.text.terminal import escape_unprintable
from turnlog.observe.clock import Clock
from turnlog.sessions.control.fork import (
    ForkMade,
    ForkOrder,
    fork,
    fork_draft,
    has_calls_behind,
)
from turnlog.sessions.state.state_at import saved_states


@click.command("fork")
@click.argument("parent", metavar="SESSION[:SEQ]")
@click.option("--name", metavar="NAME", default="", help="A name for the fork.")
@click.option(
    "--mode",
    metavar="|".join(ForkMode),
    type=word_of("mode", ForkMode),
    default=ForkMode.LIVE,
    help="Send calls (live), or answer them from the parent's record (replay).  [default: live]",
)
@click.option(
    "--then",
    metavar="|".join(AfterDivergence),
    type=word_of("end", AfterDivergence),
    default=AfterDivergence.STOP,
    help="With --mode replay, at the first call that has no answer: refuse it and all later ones, or go live.  [default: stop]",
)
@fence_option
@writing_options
@json_option
def command(
    parent: str,
    name: str,
    mode: ForkMode,
    then: AfterDivergence,
    fence: int | None,
    target: WrittenStore,
    as_json: bool,
) -> None:
    """Begin a session with the state that SESSION had after commit SEQ, or has now.

    The parent is not changed and goes on. The fork is a session of its own with the parent's commits
    up to SEQ before its first one: `verify` checks that, `diff PARENT FORK` says where they parted.
    Effects of the other branch stand outside: a call that would have one again, of a tool whose effect
    a rule names, is not just sent.

    With --mode replay nothing is sent: calls are answered from what the parent recorded behind SEQ,
    as long as server, tool and input are the same.

    \b
    turnlog fork work:42 --name second-try
    """
    if target.clean(name) != name:
        raise click.UsageError("--name holds a secret, choose another")
    with open_view(target.folder) as view:
        session, seq = parent, None
        if not view.find_sessions(parent):
            head, colon, tail = parent.rpartition(":")
            if colon and tail.isascii() and tail.isdigit():
                session, seq = head, int(tail[:18])
        order = ForkOrder(session=session, seq=seq, name=name, mode=mode, then=then, fence=fence)
        draft = fork_draft(view, saved_states(target.folder), order, Clock())
        replays_nothing = mode is ForkMode.REPLAY and not has_calls_behind(view, draft)
    with printout() as write:
        made = target.write(lambda store: fork(store, draft, order))
        write(json_line(made) if as_json else _text(made))
    if replays_nothing:
        refused = "refused" if then is AfterDivergence.STOP else "sent"
        complain(
            f"{parent!r} has no call behind commit {made.parent_seq}, so nothing can be replayed: the "
            f"fork's calls are {refused}; to replay calls, fork at the commit before them: SESSION:SEQ"
        )


def _text(made: ForkMade) -> str:
    name = f" ({made.name})" if made.name else ""
    said = f"forked {made.parent} at commit {made.parent_seq}: {made.session}{name}"
    return escape_unprintable(said)
