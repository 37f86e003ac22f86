import pytest

from turnlog.core.bounded_dict import BoundedDict


def test_a_new_item_pushes_out_the_one_that_was_set_first() -> None:
    known: BoundedDict[str, int] = BoundedDict(2)
    for name, value in (("a", 1), ("b", 2), ("c", 3)):
        known[name] = value
    assert list(known.items()) == [("b", 2), ("c", 3)]


def test_an_item_that_is_set_again_is_the_newest() -> None:
    known: BoundedDict[str, int] = BoundedDict(2)
    known["a"] = known["b"] = 1
    known["a"] = 2
    known["c"] = 3
    assert list(known.items()) == [("a", 2), ("c", 3)]


def test_a_default_that_is_set_counts_as_an_item() -> None:
    known: BoundedDict[str, int] = BoundedDict(1)
    known["a"] = 1
    assert known.setdefault("b", 2) == 2
    assert list(known) == ["b"]


def test_a_read_does_not_make_an_item_newer() -> None:
    known: BoundedDict[str, int] = BoundedDict(2)
    known["a"] = known["b"] = 1
    assert known["a"] == 1
    assert known.get("a") == known.setdefault("a", 5) == 1
    known["c"] = 1
    assert "a" not in known


def test_there_are_no_copies_without_a_bound() -> None:
    known: BoundedDict[str, int] = BoundedDict(1)
    for copied in (known.copy, lambda: known | {"a": 1}):
        with pytest.raises(TypeError):
            copied()
