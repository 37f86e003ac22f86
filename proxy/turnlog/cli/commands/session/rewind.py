"""`turnlog rewind`: take a session back to an earlier commit; without --yes only the plan."""

import shlex
from collections.abc import Iterator

import click
import msgspec

from turnlog.cli.options import (
    SEQ,
    TURN,
    WrittenStore,
    fence_option,
    json_option,
    open_view,
    printout,
    why_option,
    writing_options,
)
from turnlog.cli.render import Style, json_line, painted
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.packs.rulebook import read_each, rulebook
from turnlog.sessions.control.compensation import Proposal
from turnlog.sessions.control.rewind import RewindOrder, rewind
from turnlog.sessions.control.rewind_plan import (
    DiscardedCall,
    EffectGroup,
    RewindPlan,
    rewind_plan,
    rewind_target,
)
from turnlog.sessions.dangling import DanglingReason
from turnlog.sessions.log import find_session

_SHOWN = 50
"""Calls of a group that the text shows."""
_HEADINGS = {
    EffectGroup.IRREVERSIBLE: "effect stands, and cannot be undone",
    EffectGroup.STANDS: "effect stands",
    EffectGroup.IDEMPOTENT: "effect stands, and may be made again",
    EffectGroup.NO_EFFECT: "without effect",
}


@click.command("rewind")
@click.argument("session")
@click.argument("seq", type=SEQ, required=False)
@click.option("--turn", type=TURN, metavar="N", help="To the end of this turn; -1 is the newest.")
@click.option("--yes", is_flag=True, help="Append the rewind; needs --expect.")
@click.option("--expect", type=SEQ, metavar="HEAD", help="The head that the plan named.")
@click.option("--keep", type=SEQ, metavar="SEQ", multiple=True, help="Keep this call; repeatable.")
@why_option
@fence_option
@writing_options
@click.option("--rules", multiple=True, metavar="PACK_OR_FILE", help="As in `turnlog serve`.")
@json_option
def command(
    session: str,
    seq: int | None,
    turn: int | None,
    yes: bool,
    expect: int | None,
    keep: tuple[int, ...],
    why: str,
    fence: int | None,
    target: WrittenStore,
    rules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Return a session to commit SEQ: what came after it does not count any more.

    Without --yes this is a plan: it lists the calls that would be discarded, by what stands of them
    outside, and changes nothing. turnlog never undoes an effect; where a rule names a compensation,
    the plan shows the call that would. With --yes a commit is appended, unless the session has grown
    since the plan. Nothing is deleted: `--all` of `log`, `state`, `diff`, `dangling` and `export`
    shows what was discarded, and a rewind to a discarded commit takes the rewind back.

    \b
    turnlog rewind work 17
    turnlog rewind work 17 --yes --expect 42 --keep 31
    """
    if (seq is None) == (turn is None):
        raise click.UsageError("give SEQ or --turn, one of them")
    if yes and expect is None:
        raise click.UsageError("--yes needs --expect HEAD, the head that the plan names")
    settings, sources = target.settings, target.settings.sources()
    book = rulebook(sources, read_each(sources))
    with printout() as write:
        with open_view(target.folder) as view:
            found = find_session(view, session)
            to = rewind_target(view, found, seq=seq, turn=turn)
            plan = rewind_plan(view, found, to, keep=keep, rules=book)
        if yes and expect is not None:
            order = RewindOrder(expect=expect, why=target.clean(why), fence=fence)
            planned = plan
            plan = target.write(lambda store: rewind(store, planned, order))
        given = {"--config": target.config, "--data": target.data}
        told = [word for name, value in given.items() if value for word in (name, value)]
        told += [word for source in rules for word in ("--rules", source)]
        is_ruled = bool(settings.rules or any(up.packs for up in settings.upstreams.values()))
        again = shlex.join([session, str(plan.target), *told])
        for line in [json_line(plan)] if as_json else _text(plan, again, is_ruled=is_ruled):
            write(line)


def _text(plan: RewindPlan, again: str, *, is_ruled: bool) -> Iterator[str]:
    """Yield the lines of a plan; `again` are the arguments that made it."""
    done = plan.rewound is not None
    where = f"{plan.session} to commit {plan.target}, turn {plan.target_turn}"
    yield f"rewound {where}, by commit {plan.rewound}" if done else f"plan: rewind {where}"
    calls = counted(len(plan.discarded), "call")
    yield f"{calls} discarded, {counted(plan.commits, 'commit')} in all; nothing outside is undone"
    if not plan.discarded:
        yield "no call was recorded there; what was done without turnlog is not known"
    for group in EffectGroup:
        yield from _group(group, [one for one in plan.discarded if one.group is group])
    if plan.voided:
        yield painted("decisions, facts and choices that are void", Style.FAINT)
        yield from (escape_unprintable(f"  {note.seq}  {note.summary}") for note in plan.voided)
    yield from _remarks(plan)
    if plan.discarded and not is_ruled:
        yield "no rules were given, so no compensation is shown: --config or --rules"
    if not done:
        keep = "".join(f" --keep {seq}" for seq in plan.kept)
        again = escape_unprintable(again)
        yield f"to do it: turnlog rewind {again} --yes --expect {plan.head}{keep}"


def _group(group: EffectGroup, calls: list[DiscardedCall]) -> Iterator[str]:
    if calls:
        yield painted(f"{_HEADINGS[group]}: {counted(len(calls), 'call')}", Style.FAINT)
        for one in calls[:_SHOWN]:
            yield from map(escape_unprintable, _call(one))
        if len(calls) > _SHOWN:
            yield f"  {len(calls) - _SHOWN} more, --json lists them"


def _call(one: DiscardedCall) -> Iterator[str]:
    # A call of unknown outcome is said to be unknown by its status.
    is_said = one.standing is None or one.standing is DanglingReason.UNKNOWN
    open_as = "" if is_said else f", {one.standing}"
    status = f"{one.status}, executed {one.executed}{open_as}"
    yield f"  {one.seq}  {one.server}/{one.tool}  {one.preview}  {status}"
    if not one.tracked:
        yield "      effect unknown, not restorable"
    if one.compensation is not None:
        yield f"      undo: {_proposal(one.compensation)}"


def _proposal(made: Proposal) -> str:
    calls = [
        f"{c.tool} {msgspec.json.encode(c.args).decode()}" for c in (made.call, made.look) if c
    ]
    shown = ", look: ".join(calls)
    why = f"{made.fit}: {made.why}" if made.why else made.fit.value
    return f"{shown} ({why})" if shown else why


def _remarks(plan: RewindPlan) -> Iterator[str]:
    if plan.untracked:
        yield f"{counted(plan.untracked, 'call')} of unknown effect: no rule names what the tool does"
    if plan.in_flight:
        yield f"{counted(plan.in_flight, 'call')} in flight: they go on, and are listed as detached"
    if plan.returning:
        yield f"{counted(plan.returning, 'call')} of an earlier branch count again"
    if plan.kept:
        yield f"kept: {', '.join(map(str, plan.kept))}"
