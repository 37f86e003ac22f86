"""`block_if: tainted` where it cannot be told whether a call carries tainted values."""

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside
from kit.clients import call, wait_until
from kit.upstreams import RawUpstream, answer, ok, text_result

RULES = """
rules:
  - {match: {tool: unrecorded}, taint: mark, store: nothing}
  - {match: {tool: kept_out}, store: nothing}
  - {match: {tool: read_mail}, taint: mark}
  - {match: {tool: checked_mail}, taint: endorse}
  - {name: no sending, match: {tool: send}, block_if: tainted}
  - {match: {tool: pay_block}, provenance: {inputs: sourced, then: block}}
  - {match: {tool: pay_surface}, provenance: {inputs: sourced, then: surface}}
"""
TOKEN, OTHER, UNSEEN = "deploy-7f3a9c21", "build-55d01e77", "ship-90ab34cd"
KIB, MIB = 1 << 10, 1 << 20


@contextmanager
def ruled(folder: Path, **limits: str) -> Generator[Rig]:
    (folder / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], "limits": limits}
    with (
        RawUpstream() as upstream,
        proxy_beside(folder, upstream.url, settings=settings) as proxy,
    ):
        yield Rig(upstream, proxy)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), record="4MiB") as rig:
        yield rig


def given(rig: Rig, tool: str, output: str, **arguments: object) -> bytes:
    """Make a call that is answered with a text; return the answer."""
    rig.upstream.script = answer(ok(json.dumps(text_result(1, output)).encode()))
    return rig.post(call(tool, arguments))


def is_refused(rig: Rig, value: str, tool: str = "send") -> bool:
    """Call a tool that has a rule about its inputs; return whether it was refused, and not sent."""
    sent = len(rig.upstream.requests)
    told = given(rig, tool, "sent", target=value)
    is_sent = len(rig.upstream.requests) > sent
    kind = b"policy_blocked" if tool == "send" else b"unverified_provenance"
    assert (kind in told) is not is_sent
    return not is_sent


def detail(rig: Rig) -> str:
    """Return why the last call was refused."""
    wait_until(lambda: rig.rows()[-1].kind == "policy_blocked", "the refusal is on disk")
    row = rig.rows()[-1]
    assert row.executed == "no"
    return str(json.loads(ran(rig, "show", row.call, "--json"))["detail"])


def ran(rig: Rig, *arguments: str) -> str:
    done = turnlog(*arguments, data=rig.proxy.data)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def partial(rig: Rig) -> list[str]:
    """Return what `taint show` says that it may have missed."""
    found = json.loads(ran(rig, "taint", "show", rig.session, "--format", "json"))
    return [str(each) for each in found["partial"]]


def words(size: int) -> str:
    """Return a text of about that many characters, with few values."""
    return "lorem ipsum\n" * (size // 12)


def values(count: int, name: str) -> str:
    return " ".join(f"{name}-{number:06}x" for number in range(count))


def commit_of_the_first(rig: Rig) -> str:
    row = rig.ended_rows(1)[0]
    return f"{row.session}:{row.seq}"


@pytest.mark.promise("TAINT-7")
def test_a_value_behind_the_first_64_kib_of_a_marked_output_is_refused(rig: Rig) -> None:
    given(rig, "read_mail", f"{words(900 * KIB)} {TOKEN}", id="mail-1234")
    assert is_refused(rig, TOKEN)
    assert not is_refused(rig, UNSEEN)


@pytest.mark.promise("TAINT-8")
def test_a_marked_output_of_more_than_1_mib_refuses_every_value_until_it_is_endorsed(
    rig: Rig,
) -> None:
    given(rig, "read_mail", f"{words(MIB + KIB)} {TOKEN}", id="mail-1234")
    first = commit_of_the_first(rig)
    assert is_refused(rig, TOKEN)
    assert detail(rig) == (
        "the rule 'no sending' refuses calls while tainted values may have been missed: those of "
        f"{first} (only its first 1 MiB is looked at); `turnlog taint endorse {first} --why TEXT`, or a rule "
        "with `taint: endorse`, vouches for an output"
    )
    assert is_refused(rig, UNSEEN)
    assert f"values of {first} may be missing: only its first 1 MiB is looked at" in partial(rig)
    ran(rig, "taint", "endorse", first, "--why", "it was read by a person")
    assert not is_refused(rig, TOKEN)
    assert not any("may be missing" in said for said in partial(rig))


@pytest.mark.promise("TAINT-8")
def test_what_has_no_values_passes_although_tainted_values_may_have_been_missed(rig: Rig) -> None:
    given(rig, "read_mail", words(2 * MIB), id="mail-1234")
    assert not is_refused(rig, "main")
    assert is_refused(rig, UNSEEN)


@pytest.mark.promise("TAINT-8")
@pytest.mark.parametrize("tool", ["list", "checked_mail"])
def test_what_is_missed_of_clean_outputs_refuses_nothing(rig: Rig, tool: str) -> None:
    given(rig, tool, f"{words(2 * MIB)} {TOKEN}", path="/srv/data-1")
    for number in range(3):
        given(rig, tool, values(5000, f"id{number}"), path="/srv/data-2")
    assert not is_refused(rig, TOKEN)


@pytest.mark.promise("TAINT-8")
def test_tainted_values_that_were_forgotten_refuse_every_value(rig: Rig) -> None:
    given(rig, "read_mail", f"{TOKEN} {values(4000, 'first')}", id="mail-1234")
    first = commit_of_the_first(rig)
    for number in range(9):
        given(rig, "read_mail", values(5000, f"more{number}"), id=f"mail-{number}")
    assert is_refused(rig, TOKEN)
    assert "(its values were forgotten for those of later tainted outputs)" in detail(rig)
    assert first in detail(rig)


@pytest.mark.promise("TAINT-8")
def test_a_marked_output_that_is_not_recorded_refuses_every_value(rig: Rig) -> None:
    given(rig, "unrecorded", f"please use {TOKEN}", id="mail-1234")
    first = commit_of_the_first(rig)
    assert is_refused(rig, TOKEN)
    assert f"{first} (its content is not recorded)" in detail(rig)
    assert f"values of {first} may be missing: its content is not recorded" in partial(rig)


@pytest.mark.promise("TAINT-8")
def test_an_output_that_is_not_recorded_may_carry_on_what_its_call_was_given(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "kept_out", f"made {OTHER}", target="plain-4711x")
    assert not is_refused(rig, UNSEEN)
    given(rig, "kept_out", f"made {OTHER}", target=TOKEN)
    last = rig.ended_rows(4)[-1]
    assert is_refused(rig, OTHER)
    assert f"{last.session}:{last.seq} (its content is not recorded)" in detail(rig)


@pytest.mark.promise("TAINT-8")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_marked_output_that_is_not_recorded_whole_refuses_every_value(
    tmp_path: Path, is_restarted: bool
) -> None:
    with ruled(tmp_path, record="8KiB") as rig:
        rig.fresh()
        given(rig, "read_mail", f"{words(9 * KIB)} {TOKEN}", id="mail-1234")
        given(rig, "list", words(9 * KIB), path="/srv/data-1")
        rig.ended_rows(2)
        if not is_restarted:
            assert is_refused(rig, TOKEN)
    if is_restarted:
        with ruled(tmp_path, record="8KiB") as again:
            again.session = rig.session
            assert is_refused(again, TOKEN)
    first = commit_of_the_first(rig)
    assert f"{first} (it is not recorded whole)" in detail(rig)
    assert f"values of {first} may be missing: it is not recorded whole" in partial(rig)


@pytest.mark.promise("TAINT-8")
def test_the_output_of_a_call_with_a_tainted_value_behind_what_is_recorded_is_refused(
    tmp_path: Path,
) -> None:
    with ruled(tmp_path, record="8KiB") as rig:
        rig.fresh()
        given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
        given(rig, "deploy", f"started {OTHER}", script=words(9 * KIB), target=TOKEN)
        assert is_refused(rig, OTHER)


@pytest.mark.promise("TAINT-8")
def test_an_output_whose_input_is_not_recorded_whole_may_have_what_an_operator_marked(
    tmp_path: Path,
) -> None:
    with ruled(tmp_path, record="8KiB") as rig:
        rig.fresh()
        given(rig, "list", f"please use {TOKEN}", path="/srv/data-1")
        given(rig, "deploy", f"started {OTHER}", script=words(9 * KIB), target=TOKEN)
        rig.ended_rows(2)
        assert not is_refused(rig, OTHER)
        ran(rig, "taint", "mark", commit_of_the_first(rig), "--why", "it is forged")
        assert is_refused(rig, OTHER)
        assert "its input may have had tainted values" in detail(rig)


@pytest.mark.promise("TAINT-8")
def test_a_marked_output_whose_content_is_gone_refuses_every_value_after_a_restart(
    tmp_path: Path,
) -> None:
    with ruled(tmp_path) as rig:
        rig.fresh()
        given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
        given(rig, "list", "nothing here", path="/srv/data-1")
        rig.ended_rows(2)
    for bucket in (rig.proxy.data / "blobs").iterdir():
        shutil.rmtree(bucket) if bucket.is_dir() else bucket.unlink()
    with ruled(tmp_path) as again:
        again.session = rig.session
        assert is_refused(again, TOKEN)
        first = commit_of_the_first(again)
        assert f"{first} (its content is gone (" in detail(again)
        ran(again, "taint", "endorse", first, "--why", "it was read by a person")
        assert not is_refused(again, TOKEN)


@pytest.mark.promise("TAINT-8")
def test_a_fork_lets_calls_pass_again_once_the_output_was_purged(tmp_path: Path) -> None:
    with ruled(tmp_path, record="4MiB") as rig:
        rig.fresh()
        given(rig, "read_mail", words(2 * MIB), id="mail-1234")
        rig.ended_rows(1)
        parent = rig.session
        ran(rig, "fork", parent, "--name", "fork")
        rig.session = "fork"
        assert is_refused(rig, UNSEEN)
        ran(rig, "purge", parent, "--yes")
        assert not is_refused(rig, UNSEEN)


@pytest.mark.promise("TAINT-8")
def test_a_rewind_takes_back_no_tainted_output(rig: Rig) -> None:
    given(rig, "list", "nothing", path="/srv/data-1")
    first = rig.ended_rows(1)[0]
    given(rig, "read_mail", words(2 * MIB), id="mail-1234")
    head = rig.ended_rows(2)[1].seq
    ran(rig, "rewind", rig.session, str(first.seq), "--yes", "--expect", str(head))
    assert is_refused(rig, UNSEEN)


@pytest.mark.promise("TAINT-8")
@pytest.mark.parametrize(
    "items",
    [
        [f"item-{number:06x}" for number in range(100)],
        [f"fresh-{number:06x}" for number in range(300)],
        list(range(100_000, 103_000)),
    ],
    ids=["sourced", "unverified", "numbers"],
)
def test_a_call_with_many_values_passes_without_a_tainted_one(
    rig: Rig, items: list[object]
) -> None:
    given(rig, "list", values(100, "item"), path="/srv/data-1")
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    before = len(rig.upstream.requests)
    given(rig, "send", "sent", items=items)
    assert len(rig.upstream.requests) == before + 1
    assert b"policy_blocked" in given(rig, "send", "sent", items=[*items, TOKEN])


@pytest.mark.promise("PROV-20")
def test_a_call_with_many_sourced_values_passes(rig: Rig) -> None:
    given(rig, "list", values(100, "item"), path="/srv/data-1")
    items = values(100, "item").split()
    assert b"unverified_provenance" not in given(rig, "pay_block", "paid", items=items)


@pytest.mark.promise("TAINT-8")
@pytest.mark.parametrize("value", ["C:\\temp\\notes-4711x", "überweisung-47", 1234567.8901234567])
def test_a_value_is_found_in_long_arguments_however_it_is_escaped(rig: Rig, value: object) -> None:
    given(rig, "read_mail", f"please use {value} now", id="mail-1234")
    told = given(rig, "send", "sent", text=words(100 * KIB), target=value)
    assert b"policy_blocked" in told


@pytest.mark.promise("TAINT-8")
def test_the_output_of_a_call_with_a_tainted_value_behind_64_kib_is_tainted(rig: Rig) -> None:
    given(rig, "read_mail", f"please use {TOKEN}", id="mail-1234")
    given(rig, "deploy", f"started {OTHER}", script=f"{words(100 * KIB)} {TOKEN}")
    given(rig, "deploy", "started plain-4711x", script=words(100 * KIB))
    assert is_refused(rig, OTHER)
    assert not is_refused(rig, "plain-4711x")
    found = json.loads(ran(rig, "taint", "show", rig.session, "--format", "json"))
    assert [one["tool"] for one in found["calls"]] == ["deploy", "send"]


@pytest.mark.promise("PROV-20")
@pytest.mark.parametrize(
    ("tool", "output"),
    [
        ("list", f"{words(2 * MIB)} {TOKEN}"),
        ("read_mail", f"{words(2 * MIB)} {TOKEN}"),
        ("unrecorded", TOKEN),
    ],
)
def test_a_value_that_may_have_been_missed_is_not_sourced(rig: Rig, tool: str, output: str) -> None:
    given(rig, tool, output, id="mail-1234")
    assert is_refused(rig, TOKEN, "pay_block")
    assert b"unverified_provenance" in given(rig, "pay_surface", "paid", target=TOKEN)


@pytest.mark.promise("PROV-20")
def test_a_value_that_was_forgotten_is_not_sourced(rig: Rig) -> None:
    given(rig, "list", f"{TOKEN} {values(4000, 'first')}", path="/srv/data-1")
    for number in range(9):
        given(rig, "list", values(5000, f"more{number}"), path=f"/srv/data-{number}")
    assert is_refused(rig, TOKEN, "pay_block")
    assert not is_refused(rig, "more8-000017x", "pay_block")
