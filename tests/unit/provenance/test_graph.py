"""The graph of tainted values: what leads to a place, and trees of what follows one."""

from turnlog.provenance.graph import GraphEdge, TreeLine, leading_to, tree_lines

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


def test_a_chain_of_any_length_is_a_tree() -> None:
    edges = [GraphEdge(number, number + 1) for number in range(2000)]
    *_, last = tree_lines(edges, [0])
    assert (last.place, len(last.lasts)) == (2000, 2000)
