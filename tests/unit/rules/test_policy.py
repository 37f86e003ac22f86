"""The policy of one call: order, matching, caching."""

import pytest

from turnlog.core.kinds import Effect, ErrorKind
from turnlog.rules.expression import UNREADABLE
from turnlog.rules.model import (
    Access,
    BlockIf,
    ErrorMap,
    Expects,
    KeepContent,
    Match,
    ProvenanceDemand,
    RequiredInputs,
    RequiredProvenance,
    RequiredResult,
    Retry,
    Rule,
    TaintAction,
    Timeouts,
    Unmet,
)
from turnlog.rules.policy import (
    Policy,
    Rulebook,
    Subject,
    decide_policy,
    deny_unreadable,
    matches_glob,
    tool_of_path,
)


def subject(tool: str = "read_file", *, server: str = "files") -> Subject:
    return Subject(server=server, tool=tool, method="tools/call")


def nothing() -> object:
    raise AssertionError("no rule looks at arguments here")


@pytest.mark.promise("RULE-2")
def test_without_a_rule_nothing_is_decided() -> None:
    assert decide_policy((), subject(), nothing) == Policy()


@pytest.mark.parametrize(
    ("policy", "looks"),
    [
        (Policy(expects=Expects.CONTENT, map_error=(ErrorMap(kind=ErrorKind.CONFLICT),)), False),
        (Policy(map_error=(ErrorMap(kind=ErrorKind.CONFLICT, when=("$.args.a",)),)), True),
        (Policy(redact=("$.args.a",)), True),
    ],
)
def test_only_some_policies_need_the_arguments_of_an_ended_call(
    policy: Policy, looks: bool
) -> None:
    assert policy.uses_arguments is looks


@pytest.mark.promise("RULE-3")
def test_the_first_rule_with_an_aspect_decides_it() -> None:
    rules = [
        Rule(name="a", match=Match(tool=("write_*",)), effect=Effect.WRITE),
        Rule(name="b", effect=Effect.READ),
        Rule(name="c", effect=Effect.IRREVERSIBLE, timeout=Timeouts(total=5)),
    ]
    found = decide_policy(rules, subject(), nothing)
    assert (found.effect, found.timeout.total) == (Effect.READ, 5)
    assert found.decided_by == {"effect": "b", "timeout": "c"}


@pytest.mark.promise("RULE-3")
def test_an_aspect_is_decided_as_a_whole() -> None:
    rules = [Rule(timeout=Timeouts(connect=1)), Rule(timeout=Timeouts(total=5))]
    assert decide_policy(rules, subject(), nothing).timeout == Timeouts(connect=1)


def test_a_match_on_effect_sees_what_earlier_rules_decided() -> None:
    retry = Rule(match=Match(effect=(Effect.READ,)), retry=Retry(on=("timeout",)))
    named = Rule(effect=Effect.READ)
    assert decide_policy([named, retry], subject(), nothing).retry == retry.retry
    assert decide_policy([retry, named], subject(), nothing).retry is None


@pytest.mark.promise("RULE-23")
def test_a_match_on_effect_sees_a_trusted_annotation_until_a_rule_decides() -> None:
    expects = Rule(match=Match(effect=(Effect.READ,)), expects=Expects.CONTENT)
    hinted = Subject(server="files", tool="x", method="tools/call", hint=Effect.READ)
    assert decide_policy([expects], hinted, nothing).expects is Expects.CONTENT
    assert decide_policy([Rule(effect=Effect.WRITE), expects], hinted, nothing).expects is None


@pytest.mark.parametrize(
    ("arguments", "matches"),
    [({"mode": "append"}, True), ({"mode": "new"}, False), ({}, False), (None, False)],
)
def test_a_rule_can_depend_on_arguments(arguments: object, matches: bool) -> None:
    rule = Rule(match=Match(when=("$[?@.mode == 'append']",)), effect=Effect.WRITE)
    found = decide_policy([rule], subject(), lambda: arguments)
    assert (found.effect is Effect.WRITE) is matches


@pytest.mark.parametrize(
    ("globs", "text", "covered"),
    [
        (("*",), "", True),
        (("read_*", "list_*"), "list_dir", True),
        (("read_*",), "Read_file", False),
        (("read_?",), "read_ab", False),
        (("*\n*",), "a\nb", True),
    ],
)
def test_globs_cover_whole_texts_in_their_case(
    globs: tuple[str, ...], text: str, covered: bool
) -> None:
    assert matches_glob(globs, text) is covered


@pytest.mark.parametrize(
    ("pattern", "path", "tool"),
    [
        ("/users/*", "/users/ada", "GET /users/*"),
        ("/users/*", "/users/ada/posts", None),
        ("/users/**", "/users/ada/posts", "GET /users/**"),
        ("/users/*/posts", "/users/ada/posts", "GET /users/*/posts"),
        ("/a.b", "/aXb", None),
    ],
)
def test_a_path_pattern_names_the_tool(pattern: str, path: str, tool: str | None) -> None:
    rules = [Rule(match=Match(path=(pattern,)))]
    assert tool_of_path(rules, "api", "GET", path) == tool


@pytest.mark.promise("RULE-4")
def test_users_rules_come_before_packs_and_packs_before_the_default() -> None:
    book = Rulebook(
        [Rule(match=Match(tool=("own",)), effect=Effect.READ)],
        {"files": [Rule(match=Match(tool=("own", "pack")), effect=Effect.WRITE)]},
        [Rule(effect=Effect.IRREVERSIBLE)],
    )
    decided = [book.policy(subject(tool), nothing).effect for tool in ("own", "pack", "other")]
    assert decided == [Effect.READ, Effect.WRITE, Effect.IRREVERSIBLE]
    assert book.policy(subject("pack", server="git"), nothing).effect is Effect.IRREVERSIBLE


def test_a_policy_that_depends_on_arguments_is_not_cached() -> None:
    book = Rulebook([Rule(match=Match(when=("$.args.x",)), effect=Effect.READ)], {}, ())
    assert book.policy(subject(), lambda: {"x": 1}).effect is Effect.READ
    assert book.policy(subject(), dict).effect is None
    assert book.policy(subject(), lambda: {"x": 1}).effect is Effect.READ


DRY = Match(when=("$.args.dry",))
PINNED = ProvenanceDemand(tool=RequiredProvenance.PINNED, then=Unmet.BLOCK)
AGAIN = Rule(name="again", retry=Retry(on=("connection",)))


def unread() -> object:
    return UNREADABLE


@pytest.mark.promise("RULE-25")
@pytest.mark.parametrize(
    ("rules", "effect", "by"),
    [
        ([Rule(name="w", match=DRY, effect=Effect.IRREVERSIBLE)], Effect.IRREVERSIBLE, "w"),
        ([Rule(name="w", match=DRY, effect=Effect.READ)], None, None),
        (
            [
                Rule(name="w", match=DRY, effect=Effect.READ),
                Rule(name="v", match=DRY, effect=Effect.WRITE),
                Rule(name="n", effect=Effect.IDEMPOTENT_WRITE),
                Rule(name="x", match=DRY, effect=Effect.IRREVERSIBLE),
            ],
            Effect.WRITE,
            "v",
        ),
        (
            [Rule(name="n", effect=Effect.WRITE), Rule(name="w", match=DRY, effect=Effect.READ)],
            Effect.WRITE,
            "n",
        ),
    ],
)
def test_with_unreadable_arguments_the_worst_effect_counts(
    rules: list[Rule], effect: Effect | None, by: str | None
) -> None:
    found = decide_policy([*rules, AGAIN], subject(), unread)
    assert (found.effect, found.decided_by.get("effect")) == (effect, by)
    assert (found.retry, "retry" in found.decided_by) == (None, False)


@pytest.mark.promise("RULE-25")
def test_with_unreadable_arguments_every_restriction_applies() -> None:
    rules = [
        Rule(name="a", match=DRY, provenance=PINNED, redact=("$.args.a",)),
        Rule(name="b", match=DRY, store=KeepContent.SUMMARY, expects=Expects.CONTENT),
        Rule(
            name="c",
            provenance=ProvenanceDemand(),
            redact=("$.args.c",),
            store=KeepContent.NOTHING,
        ),
        Rule(name="d", match=DRY, redact=("$.args.d",)),
    ]
    found = decide_policy(rules, subject(), unread)
    assert (found.provenance, found.decided_by["provenance"]) == (PINNED, "a")
    assert (found.store, found.decided_by["store"]) == (KeepContent.NOTHING, "c")
    assert found.redact == ("$.args.a", "$.args.c")
    assert found.expects is None


@pytest.mark.promise("RULE-25")
def test_with_unreadable_arguments_every_demand_and_every_gate_counts() -> None:
    inputs = ProvenanceDemand(inputs=RequiredInputs.SOURCED)
    result = ProvenanceDemand(result=RequiredResult.CHECKED, then=Unmet.SURFACE)
    rules = [
        Rule(name="a", match=DRY, provenance=inputs, taint=TaintAction.ENDORSE),
        Rule(name="b", match=DRY, block_if=BlockIf.TAINTED, taint=TaintAction.MARK),
        Rule(name="c", provenance=result, block_if=BlockIf.NEVER),
    ]
    found = decide_policy(rules, subject(), unread)
    assert found.provenance == ProvenanceDemand(
        inputs=RequiredInputs.SOURCED, result=RequiredResult.CHECKED, then=Unmet.SURFACE
    )
    assert (found.block_if, found.taint) == (BlockIf.TAINTED, TaintAction.MARK)
    by = [found.decided_by[aspect] for aspect in ("provenance", "block_if", "taint")]
    assert by == ["a", "b", "b"]
    endorsed = decide_policy([rules[0]], subject(), unread)
    assert endorsed.taint is None


@pytest.mark.parametrize(
    ("demand", "judges", "looks"),
    [
        (PINNED, False, False),
        (ProvenanceDemand(tool=RequiredProvenance.PINNED, then=Unmet.SURFACE), True, False),
        (ProvenanceDemand(inputs=RequiredInputs.SOURCED), False, False),
        (ProvenanceDemand(inputs=RequiredInputs.SOURCED, then=Unmet.SURFACE), True, True),
        (ProvenanceDemand(inputs=RequiredInputs.SOURCED, then=Unmet.BLOCK), False, True),
        (ProvenanceDemand(result=RequiredResult.VERIFIED), False, False),
        (ProvenanceDemand(result=RequiredResult.VERIFIED, then=Unmet.BLOCK), True, False),
    ],
)
def test_a_demand_says_when_it_is_checked(
    demand: ProvenanceDemand, judges: bool, looks: bool
) -> None:
    found = Policy(provenance=demand)
    assert (found.judges_answers, found.looks_at_inputs) == (judges, looks)


def test_a_rule_about_tainted_inputs_looks_at_inputs() -> None:
    assert Policy(block_if=BlockIf.TAINTED).looks_at_inputs
    assert not Policy(taint=TaintAction.MARK).looks_at_inputs


def test_a_match_on_an_uncertain_effect_is_uncertain() -> None:
    rules = [
        Rule(match=DRY, effect=Effect.IRREVERSIBLE),
        Rule(effect=Effect.READ),
        Rule(match=Match(effect=(Effect.IRREVERSIBLE,)), provenance=PINNED),
        Rule(match=Match(effect=(Effect.READ,)), expects=Expects.CONTENT),
        Rule(match=Match(effect=(Effect.WRITE,)), expects=Expects.NOTHING),
        Rule(match=Match(effect=tuple(Effect)), expects=Expects.STRUCTURED),
    ]
    found = decide_policy(rules, subject(), unread)
    assert (found.provenance, found.expects) == (PINNED, Expects.STRUCTURED)


def test_a_rule_whose_expression_cannot_be_applied_is_uncertain() -> None:
    deep: object = {"cmd": "drop"}
    for _ in range(200):
        deep = [deep]
    search, other = ("$..cmd",), ("$.args.x",)
    sure = Rule(effect=Effect.IDEMPOTENT_WRITE)
    for when, effect in (
        (search, Effect.IRREVERSIBLE),
        ((*search, *other), Effect.IDEMPOTENT_WRITE),
    ):
        rules = [Rule(match=Match(when=when), effect=Effect.IRREVERSIBLE), sure, AGAIN]
        found = decide_policy(rules, subject(), lambda: deep)
        assert found.effect is effect
        assert (found.retry is None) is (effect is Effect.IRREVERSIBLE)


def test_the_rules_of_a_server_that_match_paths_are_found() -> None:
    one = Rule(name="one", match=Match(server=("a",), path=("/x/*",)), effect=Effect.READ)
    any_path = Rule(name="any", effect=Effect.WRITE)
    packed = Rule(name="packed", match=Match(path=("/y",)), effect=Effect.READ)
    book = Rulebook([any_path, one], {"b": [packed]}, [any_path])
    for _ in range(2):
        assert book.servers["a"].path_rules == (one,)
        assert book.servers["b"].path_rules == (packed,)
        assert book.servers["c"].path_rules == ()


DENY = Rule(name="no", match=Match(tool=("rm",)), access=Access.DENY, why="too dangerous")
ALLOW = Rule(name="yes", access=Access.ALLOW)
GATE = Rule(match=Match(tool=("rm",)), block_if=BlockIf.TAINTED)
NEVER = Rule(block_if=BlockIf.NEVER)
SOURCED = Rule(
    provenance=ProvenanceDemand(inputs=RequiredInputs.SOURCED, then=Unmet.BLOCK),
)


@pytest.mark.promise("ACC-4")
@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ((), None),
        ((ALLOW, DENY), None),
        ((DENY, ALLOW), DENY),
        ((Rule(match=Match(tool=("ls",)), access=Access.ALLOW), DENY), DENY),
        ((Rule(effect=Effect.READ),), None),
        ((ALLOW, GATE), GATE),
        ((NEVER, GATE), None),
        ((NEVER, SOURCED), SOURCED),
        ((Rule(provenance=ProvenanceDemand()), SOURCED), None),
        ((Rule(provenance=PINNED),), None),
    ],
)
def test_an_unreadable_call_is_denied_if_a_rule_might_deny_it(
    rules: tuple[Rule, ...], found: Rule | None
) -> None:
    files = Rulebook(rules, {}, ()).servers["files"]
    assert files.against_unreadable == found
    assert files.may_deny_tool_calls is (found is not None)


def test_a_rule_about_paths_or_http_methods_denies_no_tool_call() -> None:
    paths = Rule(name="paths", match=Match(path=("/admin/**",)), access=Access.DENY)
    method = Rule(match=Match(method=("POST",)), access=Access.DENY)
    web = Rulebook((paths, method), {}, ()).servers["web"]
    assert not web.may_deny_tool_calls
    assert web.denies_path("paths")
    assert not web.denies_path("no")


def test_a_rule_about_paths_looks_at_the_inputs_of_their_calls() -> None:
    gate = Rule(name="gate", match=Match(path=("/orders",)), block_if=BlockIf.TAINTED)
    other = Rule(name="other", match=Match(tool=("send",)), block_if=BlockIf.TAINTED)
    web = Rulebook((gate, other), {}, ()).servers["web"]
    at_path = Subject(server="web", tool="POST /orders", method="POST", path="/orders")
    for call, found in ((at_path, True), (subject("send"), False), (subject("list"), False)):
        assert web.gates_path(decide_policy(web.rules, call, nothing)) is found


def test_a_denied_unreadable_call_says_that_it_cannot_be_read() -> None:
    denied = deny_unreadable(Policy(why="other"), DENY)
    assert (denied.access, denied.decided_by) == (Access.DENY, {"access": "no"})
    assert "cannot be read" in denied.why


def test_an_uncertain_rule_that_denies_gives_the_reason() -> None:
    unsure = Rule(name="no", match=Match(when=("$.args.a",)), access=Access.DENY, why="secret")
    found = decide_policy((unsure,), subject(), lambda: UNREADABLE)
    assert (found.access, found.why) == (Access.DENY, "secret")
    sure = decide_policy((DENY,), subject("rm"), nothing)
    assert (sure.access, sure.why) == (Access.DENY, "too dangerous")


def test_a_policy_without_conditions_on_arguments_is_cached() -> None:
    book = Rulebook((Rule(effect=Effect.READ),), {}, ())
    assert not book.is_cached(subject())
    first = book.policy(subject(), nothing)
    assert book.is_cached(subject())
    assert book.policy(subject(), nothing) is first


def test_the_cache_of_policies_is_bounded() -> None:
    book = Rulebook((), {}, ())
    tools = [subject(str(number)) for number in range(10_001)]
    for tool in tools:
        book.policy(tool, nothing)
    assert [book.is_cached(tool) for tool in (tools[0], tools[-1])] == [False, True]


def test_a_path_without_a_pattern_names_no_tool() -> None:
    rules = (Rule(match=Match(path=("/a/*", "/b/*"))), Rule(match=Match(server=("other",))))
    assert tool_of_path(rules, "web", "GET", "/b/1") == "GET /b/*"
    assert tool_of_path(rules, "web", "GET", "/c/1") is None
