import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from turnlog.core.text.units import Size
from turnlog.packs.errors import ConfigError
from turnlog.packs.load import LARGEST_FILE, load
from turnlog.packs.plain import compose, to_plain


class Leaf(Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    tags: tuple[str, ...] = ()


class Tree(Struct, frozen=True, forbid_unknown_fields=True):
    size: Size = 0
    leaves: dict[str, Leaf] = {}
    on: bool = False


def _load(folder: Path, text: str | bytes) -> Tree:
    path = folder / "tree.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, Tree, later=frozenset({"rules"}))


def _refused(folder: Path, text: str | bytes) -> str:
    """Return the error's `line:column: message`."""
    with pytest.raises(ConfigError) as caught:
        _load(folder, text)
    error = caught.value
    assert str(error) == f"{error.path}:{error.line}:{error.column}: {error.message}"
    assert error.path == str(folder / "tree.yaml")
    return str(error).removeprefix(error.path + ":")


def test_a_file_becomes_the_type(tmp_path: Path) -> None:
    text = "size: 64KiB\nleaves:\n  a: {url: http://x, tags: [p, q]}\non: true\n"

    tree = _load(tmp_path, text)

    assert tree == Tree(65_536, {"a": Leaf("http://x", ("p", "q"))}, on=True)


def test_yaml_is_read_as_version_1_2(tmp_path: Path) -> None:
    # In YAML 1.1 `no` is false, `1:30` is 90 and the key `on` is true.
    tree = _load(tmp_path, "leaves:\n  no: {url: 1:30}\non: false\n")

    assert tree == Tree(leaves={"no": Leaf("1:30")})


def test_a_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    assert _load(tmp_path, b"\xef\xbb\xbfsize: 5\r\non: true\r\n") == Tree(5, on=True)


def test_an_alias_is_expanded(tmp_path: Path) -> None:
    tree = _load(tmp_path, "leaves:\n  a: &a {url: x}\n  b: *a\n")

    assert tree.leaves == {"a": Leaf("x"), "b": Leaf("x")}


@pytest.mark.promise("CLI-3")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size: huge\n", "1:7: 'huge' is no amount, write a size like 64KiB, 10MiB or 2GiB"),
        (
            "leaves:\n  a: {url: x}\n  b:\n    url: 3\n",
            "4:10: 'leaves.b.url' must be text, not a whole number",
        ),
        (
            "leaves:\n  a: {url: x, tags: [p, 3]}\n",
            "2:25: 'leaves.a.tags.1' must be text, not a whole number",
        ),
        ("leaves:\n  a: {}\n", "2:6: 'url' is missing, add it"),
        ("on: true\nsise: 3\n", "2:1: unknown key 'sise', did you mean 'size'?"),
        ("leaves:\n  a: {url: x, urk: y}\n", "2:15: unknown key 'urk', did you mean 'url'?"),
        ("size: 1\nrules: []\n", "2:1: 'rules' is not supported yet, remove it"),
        ("leaves:\n  1: {url: a}\n", "2:3: the key '1' is no text, quote it"),
        ("? [a]\n: 1\n", "1:3: the key '' is no text, quote it"),
        (
            "a: &a {x: 1}\nb:\n  <<: *a\n",
            "3:3: '<<' does not merge in YAML 1.2, write the keys out",
        ),
        ("size: !!int x\n", "1:7: 'x' is no int, quote it to make it text"),
        ("on: !!bool maybe\n", "1:5: 'maybe' is no bool, quote it to make it text"),
        ("leaves: !!null x\n", "1:9: 'x' is no null, quote it to make it text"),
        ("size: !!float\n", "1:7: '' is no float, quote it to make it text"),
        ("size: !size 3\n", "1:7: the tag '!size' is not allowed, remove it"),
        ("leaves: !!set {a}\n", "1:9: the tag 'tag:yaml.org,2002:set' is not allowed, remove it"),
        ("size: 1\nsize: 2\n", "2:1: 'size' is given twice, keep one"),
        ("leaves:\n\ta: 1\n", "2:1: a tab cannot indent, use spaces"),
        ("", "1:1: the file is empty, write at least one setting"),
        ("# nothing\n", "1:1: the file is empty, write at least one setting"),
        ("- 1\n", "1:1: the file must be a mapping, not a list"),
        (
            "size: 1\n---\nsize: 2\n",
            "2:1: a second document begins here, keep one document per file",
        ),
        ("%YAML 1.1\n---\non: no\n", "1:1: only YAML 1.2 is read, remove the directive"),
        (
            "a: [1,\n",
            (
                "2:1: expected the node content, but found 'the end of the file' "
                "(while parsing a flow node), correct the syntax"
            ),
        ),
        ("a: *x\n", "1:4: found undefined alias 'x', correct the syntax"),
        ("size: 1\na: \x07\n", "2:4: '\\x07' is not allowed, remove it"),
        (b"size: 1\non: \xff\n", "2:5: not UTF-8, save the file as UTF-8"),
        ("leaves:\n", "1:1: 'leaves' must be a mapping, not nothing"),
    ],
)
def test_a_mistake_has_a_line_and_a_column(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert _refused(tmp_path, text) == message


def test_a_python_object_is_not_constructed(tmp_path: Path) -> None:
    assert _refused(tmp_path, "on: !!python/object/apply:os.getcwd []\n") == (
        "1:5: the tag 'tag:yaml.org,2002:python/object/apply:os.getcwd' is not allowed, remove it"
    )


def test_a_number_of_too_many_digits_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path, "size: " + "1" * 5000).startswith("1:7: '1111")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0x10", 16), ("0o17", 15), ("-0b11", -3), ("017", 17), ("1_000", 1000), ("+5", 5), ("1e3", 1000.0),
     (".inf", float("inf")), ("-.INF", float("-inf")), ("True", True), ("~", None), ("", None),
     ("2026-13-45", "2026-13-45"), ("yes", "yes"), ("0x", "0x"), ('"5"', "5"), ("=", "=")],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = to_plain(compose(f"a: {text}\n"))["a"]

    assert (read, type(read)) == (value, type(value))


def test_surrogate_pairs_are_joined_and_lone_surrogates_refused(
    tmp_path: Path,
) -> None:
    whole, half = r'leaves: {"a": {url: "\ud83d\ude00"}}', r'leaves: {"a": {url: "\ud83d"}}'
    assert _load(tmp_path, whole).leaves["a"].url == "\U0001f600"
    said = _refused(tmp_path, half)
    assert said == r"1:21: '\ud83d' holds half a character, write all of it"


def test_aliases_that_multiply_are_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]

    assert "values with aliases written out, use fewer aliases" in _refused(
        tmp_path, "\n".join(lines)
    )


def test_an_alias_within_its_own_anchor_is_refused(tmp_path: Path) -> None:
    assert "use fewer aliases" in _refused(tmp_path, "leaves: &a {x: *a}\n")


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path, "- " * 5000 + "x") == "1:1: nested too deeply, use fewer levels"


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_brackets_are_refused_before_their_number_costs_time(tmp_path: Path, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    deepest = opening * 100 + "1" + closing * 100
    assert to_plain(compose(f"a: {deepest}")) is not None
    deeper = f"size: {opening}{deepest}{closing}"
    assert _refused(tmp_path, deeper) == "1:1: nested too deeply, use fewer levels"


def test_a_huge_file_is_refused_without_parsing(tmp_path: Path) -> None:
    assert "larger than" in _refused(tmp_path, b"#" * (LARGEST_FILE + 1))


@pytest.mark.parametrize(
    ("name", "reason"), [("absent.yaml", "no such file or directory"), (".", "is a directory")]
)
def test_an_unreadable_file_is_reported(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path / name}: {reason}, name a readable file"):
        load(tmp_path / name, Tree)


_fragments = st.sampled_from(
    ["size", "leaves", "url", "on", ": ", ":\n  ", "\n", "- ", "[", "]", "{", "}", "&a ", "*a",
     "'", '"', "|", "!!int ", "1", "x", "\t", "#", "---\n", ", ", "<<", "? ", "\u2028", "é"]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(_fragments, max_size=30).map("".join))
@example("&a : &a ")
def test_any_text_is_read_or_refused_with_a_place_in_it(tmp_path: Path, text: str) -> None:
    try:
        _load(tmp_path, text)
    except ConfigError as caught:
        error = caught
    else:
        return
    assert 1 <= error.line <= text.count("\n") + 2
    assert error.column >= 1
    assert error.message


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "rules.yaml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="not a regular file, name a readable file"):
        load(pipe, dict)
