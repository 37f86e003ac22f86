"""`engine.command.clients`: open requests of a command without a client that waits."""

from turnlog.engine.command.clients import CommandClient, OpenRequest, PendingRequests
from turnlog.engine.command.reply import CommandReply
from turnlog.record.deadlines import Progress
from turnlog.wire.jsonrpc import id_key

MOST = 1024


def ask(pending: PendingRequests, number: int) -> CommandReply:
    """Ask something; return where its answer goes."""
    reply, raw_id = CommandReply(Progress(), streams=False), b"%d" % number
    pending.add(
        OpenRequest(client=CommandClient(), reply=reply, process=None, raw_id=raw_id, own_id=raw_id)
    )
    return reply


async def test_the_oldest_of_too_many_requests_without_a_waiting_client_are_cancelled() -> None:
    pending = PendingRequests()
    awaited = ask(pending, 0)
    for number in range(1, MOST + 1):
        assert pending.on_left(ask(pending, number)) == []
    # One that is answered makes room for another.
    assert pending.take(id_key(b"2")) is not None
    assert pending.on_left(ask(pending, MOST + 1)) == []
    taken = pending.on_left(ask(pending, MOST + 2))
    assert [one.raw_id for one in taken] == [b"1"]
    assert pending.find(id_key(b"1")) is None
    assert len(list(pending)) == MOST + 1
    assert pending.replies() == [awaited]
