import pytest

from turnlog.wire.message import is_length_header


@pytest.mark.parametrize(
    "line", [b"Content-Length: 12\r\n", b"content-length:7\n", b"CONTENT-LENGTH:  0 \r\n"]
)
def test_the_header_of_a_message_that_is_no_line_is_recognized(line: bytes) -> None:
    assert is_length_header(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Content-Length:\r\n",
        b"the Content-Length: 12\n",
        b"Content-Length: 12 bytes\n",
        b'{"content-length": 12}\n',
    ],
)
def test_anything_else_is_not(line: bytes) -> None:
    assert not is_length_header(line)
