import pytest

from turnlog.wire.http.known_head import KnownHead, known_bodiless, known_head

HEAD = b"HTTP/1.1 200 OK\r\nA: 1\r\nContent-Length: %d\r\nDate: now\r\n\r\n"
FIELDS = [(b"A", b"1"), (b"Content-Length", b"4"), (b"Date", b"now")]


def known() -> KnownHead:
    found = known_head(HEAD % 4 + b"good", 4, FIELDS)
    assert found is not None
    return found


@pytest.mark.parametrize("body", [b"", b"good", b"b" * 12345])
def test_an_answer_with_the_same_head_is_read_whatever_its_length(body: bytes) -> None:
    fields = [(b"A", b"1"), (b"Content-Length", b"%d" % len(body)), (b"Date", b"now")]
    assert known().read(HEAD % len(body) + body) == (fields, body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEAD % 4 + b"goo",
        HEAD % 4 + b"good!",
        (HEAD % 4)[:-1],
        (HEAD % 4 + b"good").replace(b": 4", b": 04"),
        HEAD % 100 + b"b" * 99,
        HEAD % 99 + b"b" * 100,
        HEAD.replace(b"%d", b""),
        (HEAD % 4 + b"good").replace(b": 4", b": +4"),
        (HEAD % 4 + b"good").replace(b": 4", b": 4 "),
        (HEAD % 4 + b"good").replace(b": 4", b": 4, 4"),
        (HEAD % 4 + b"good").replace(b"200", b"500"),
        (HEAD % 4 + b"good").replace(b"now", b"then"),
        (HEAD % 4 + b"good").replace(b"now", b"now\r\nTransfer-Encoding: chunked"),
    ],
)
def test_anything_else_is_not(data: bytes) -> None:
    assert known().read(data) is None


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\ngood", FIELDS[:1]),
        (HEAD % 4 + b"good", [*FIELDS, (b"content-length", b"4")]),
        ((HEAD % 4 + b"good").replace(b": 4", b":4"), FIELDS),
        ((HEAD % 4 + b"good").replace(b": 4", b": 04"), [(b"Content-Length", b"04")]),
        (b"X: " + b"x" * 10_000 + b"\r\n" + HEAD % 4 + b"good", FIELDS),
    ],
)
def test_a_head_that_is_not_as_usual_is_not_remembered(
    data: bytes, fields: list[tuple[bytes, bytes]]
) -> None:
    assert known_head(data, 4, fields) is None


def test_all_lengths_are_read_but_the_last_ones_below_a_power_of_ten() -> None:
    lengths = [n for n in range(1200) if known().read(HEAD % n + b"b" * n) is None]
    assert lengths == [9, 98, 99, 997, 998, 999]


def test_a_head_without_a_length_is_known_whole_or_not_at_all() -> None:
    data = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    known = known_bodiless(data, [(b"Host", b"h")])
    assert known is not None
    assert known.read(data) == ([(b"Host", b"h")], b"")
    assert known.read(data + b"x") is None
    assert known.read(data[:-1]) is None
    assert known_bodiless(b"GET /" + b"x" * 10_000, []) is None
