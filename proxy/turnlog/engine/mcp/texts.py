"""The messages of a line, each with its text."""

from collections.abc import Callable, Iterator

from turnlog.wire.jsonrpc import Batch, Malformed, Message, parse


def texts_of(content: Message | Batch | Malformed, line: bytes) -> Iterator[tuple[Message, bytes]]:
    """Yield the messages of a line, each with its text."""
    if isinstance(content, Message):
        yield content, line
    elif isinstance(content, Batch):
        for item, text in zip(content.items, content.texts, strict=True):
            if isinstance(item, Message):
                yield item, bytes(text)


def changed(line: bytes, change: Callable[[Message, bytes], bytes | None]) -> bytes:
    """Return a line with each of its messages as `change` returns it, without those it drops."""
    content = parse(line)
    kept = [text for item, raw in texts_of(content, line) if (text := change(item, raw))]
    return b"[%b]" % b",".join(kept) if kept and isinstance(content, Batch) else b"".join(kept)
