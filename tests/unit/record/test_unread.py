"""`record.unread`: what lay in the sockets is read before it is said that it was."""

import asyncio
import socket
from functools import partial

import pytest

from turnlog.record.unread import Unread, all_read


@pytest.mark.parametrize("way", ["callback", "wait"])
async def test_data_sent_before_is_read_first_even_on_an_unaccepted_connection(
    way: str,
) -> None:
    order: list[str] = []
    done = asyncio.Event()

    class Reads(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            order.append(data.decode())

    def said() -> None:
        order.append("all read")
        done.set()

    loop = asyncio.get_running_loop()
    async with await loop.create_server(Reads, "127.0.0.1", 0) as server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(b"cancel")
            # As in a process that was stopped: the time is over.
            if way == "callback":
                Unread(moment=0).after(b"call", said)
                await done.wait()
            else:
                await all_read(moment=0)
                said()
    assert order == ["cancel", "all read"]


async def test_a_callback_added_while_others_wait_is_called_after_them() -> None:
    order: list[int] = []
    done = asyncio.Event()
    unread = Unread(moment=0)
    unread.after(b"a", lambda: order.append(1))
    unread.after(b"b", lambda: order.append(2))
    unread.after(b"c", done.set)
    await done.wait()
    assert order == [1, 2]


async def test_only_the_last_callback_of_a_call_is_called_and_none_of_a_discarded_one() -> None:
    order: list[str] = []
    done = asyncio.Event()
    unread = Unread(moment=0)
    unread.after(b"again", lambda: order.append("first"))
    unread.after(b"gone", lambda: order.append("gone"))
    unread.after(b"again", lambda: order.append("second"))
    unread.discard(b"gone")
    unread.discard(b"never there")
    unread.after(b"end", done.set)
    await done.wait()
    assert order == ["second"]


async def test_at_the_end_nothing_is_waited_for() -> None:
    order: list[int] = []
    unread = Unread()
    for number in range(3):
        unread.after(b"%d" % number, partial(order.append, number))
    unread.flush()
    unread.flush()
    assert order == [0, 1, 2]
