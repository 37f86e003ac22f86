"""The graph of tainted values: what leads to a place, and trees of what follows one."""

from itertools import pairwise

from turnlog.provenance.graph import DEEPEST, GraphEdge, TreeLine, leading_to, tree_lines

EDGES = [
    GraphEdge("a", "b"),
    GraphEdge("a", "c"),
    GraphEdge("b", "d"),
    GraphEdge("c", "d"),
    GraphEdge("d", "e"),
    GraphEdge("x", "y"),
    GraphEdge("a", "b"),
]


def test_what_leads_to_a_place_is_found_over_any_number_of_edges() -> None:
    assert leading_to(EDGES, "d") == {"a", "b", "c", "d"}
    assert leading_to(EDGES, "a") == {"a"}


def test_a_tree_shows_what_follows_a_place_once() -> None:
    assert list(tree_lines(EDGES, ["a", "x"])) == [
        TreeLine("a", None, (), is_repeated=False),
        TreeLine("b", "a", (False,), is_repeated=False),
        TreeLine("d", "b", (False, True), is_repeated=False),
        TreeLine("e", "d", (False, True, True), is_repeated=False),
        TreeLine("c", "a", (True,), is_repeated=False),
        TreeLine("d", "c", (True, True), is_repeated=True),
        TreeLine("x", None, (), is_repeated=False),
        TreeLine("y", "x", (True,), is_repeated=False),
    ]
    assert [line.is_repeated for line in tree_lines(EDGES, ["e", "e"])] == [False, False]


def test_a_long_chain_is_drawn_in_trees_of_bounded_depth_one_behind_the_other() -> None:
    edges: list[GraphEdge[int | str]] = [GraphEdge(n, n + 1) for n in range(5000)]
    side: GraphEdge[int | str] = GraphEdge(DEEPEST - 1, "side")
    roots: list[int | str] = [0, "last"]
    lines = list(tree_lines([*edges, side], roots))
    assert max(len(line.lasts) for line in lines) == DEEPEST
    cut = [line.place for line in lines if line.is_cut]
    assert cut == list(range(DEEPEST, 5000, DEEPEST))
    assert [line.place for line in lines if line.above is None] == [0, *cut, "last"]
    assert [line.place for line in lines if line.is_repeated] == []
    assert {line.place for line in lines} == {*range(5001), "side", "last"}


def test_a_place_that_is_too_deep_on_two_ways_has_one_tree_of_its_own() -> None:
    ways = [[(way, level) for level in range(DEEPEST - 1)] for way in "ab"]
    edges = [
        GraphEdge(one, other)
        for way in ways
        for one, other in pairwise([("root", 0), *way, ("end", 0)])
    ]
    last: GraphEdge[tuple[str, int]] = GraphEdge(("end", 0), ("behind", 0))
    lines = list(tree_lines([*edges, last], [("root", 0)]))
    assert [line.is_cut for line in lines if line.place == ("end", 0)] == [True, True, False]
    assert [line.place for line in lines][-2:] == [("end", 0), ("behind", 0)]
