"""One JSON text that comes in pieces."""

from hashlib import sha256

from turnlog.wire.jsonrpc import Kind, Malformed, Message, Reason
from turnlog.wire.message import MessageReader
from turnlog.wire.skim import Outline

TEXT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}'


def fed(limit: int, *pieces: bytes) -> MessageReader:
    reader = MessageReader(limit)
    for piece in pieces:
        reader.feed(piece)
    return reader


def test_a_text_within_the_limit_is_kept_and_parsed() -> None:
    reader = fed(len(TEXT), TEXT[:20], TEXT[20:])
    assert reader.finish() == TEXT
    assert reader.finish() is reader.finish()
    assert not reader.truncated
    content = reader.content
    assert isinstance(content, Message)
    assert content.kind is Kind.RESPONSE
    assert reader.content is content


def test_a_text_beyond_the_limit_keeps_its_start_and_is_skimmed() -> None:
    for limit in (0, 1, 25, len(TEXT) - 1):
        reader = fed(limit, TEXT[:20], TEXT[20:40], TEXT[40:])
        assert reader.finish() == TEXT[:limit]
        assert reader.truncated
        content = reader.content
        assert isinstance(content, Outline)
        assert content.complete
        assert content.raw("result.isError") == b"false"


def test_size_and_digest_are_those_of_the_whole_text() -> None:
    for limit in (3, 1000):
        reader = fed(limit, TEXT[:20], TEXT[20:])
        assert reader.size == len(TEXT)
        assert reader.digest == sha256(TEXT).digest()


def test_a_single_piece_is_kept_without_a_copy() -> None:
    assert fed(1000, TEXT).finish() is TEXT


def test_nothing_fed_is_an_empty_text() -> None:
    reader = MessageReader()
    assert reader.finish() == b""
    assert reader.content == Malformed(Reason.EMPTY)
