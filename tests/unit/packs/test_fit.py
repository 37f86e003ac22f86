"""The built-in packs that match the tools of a server."""

from turnlog.packs.fit import (
    PackMatch,
    built_in_packs,
    matching_packs,
    names_change,
    names_effect,
    pack_advice,
)

PACKS = built_in_packs()


def test_the_pack_that_names_most_tools_of_a_server_matches() -> None:
    seen = {"files": {"read_file", "write_file", "edit_file"}, "other": {"place_order"}}
    (found,) = matching_packs(seen, PACKS, names_effect)
    assert found == PackMatch(
        server="files", pack="filesystem", tools=("edit_file", "read_file", "write_file")
    )


def test_only_tools_with_an_accepted_rule_are_listed() -> None:
    assert matching_packs({"files": {"read_file"}}, PACKS, names_change) == []
    (found,) = matching_packs({"files": {"read_file", "write_file"}}, PACKS, names_change)
    assert found.tools == ("write_file",)


def test_a_pack_that_names_few_tools_of_a_server_does_not_match() -> None:
    assert matching_packs({"shop": {"fetch", "order", "pay"}}, PACKS, names_effect) == []
    assert matching_packs({"shop": set()}, PACKS, names_effect) == []


def test_packs_about_access_match_no_server() -> None:
    assert matching_packs({"x": {"delete_all", "remove_it"}}, PACKS, names_effect) == []


def test_the_advice_says_how_to_give_a_pack_to_a_server() -> None:
    one = PackMatch(server="files", pack="filesystem", tools=("a", "b", "c", "d"))
    assert pack_advice([one]) == (
        "the pack 'filesystem' knows a, b, c and 1 more tools of 'files': give it to that server with "
        "`packs: [filesystem]` in its upstream, or to all with `--rules filesystem`"
    )
    assert pack_advice([]) == ""
