"""`transport.http_server`: who sends many requests at once waits like everybody else."""

import asyncio
import socket

from turnlog.transport.http_server import AgentServer, Downstream

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
UNMET = b"GET /unmet HTTP/1.1\r\nHost: h\r\n\r\n"
"""Takes a parser, as many at once do: what is known is served before."""
MANY = 50


async def test_requests_that_came_together_leave_turns_to_other_connections() -> None:
    served: asyncio.Queue[int] = asyncio.Queue()

    async def answer(down: Downstream) -> bool:
        served.put_nowait(down.agent.number)
        return True

    server = AgentServer(answer, lambda status, _: b"%d" % status)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    address = listener.sockets[0].getsockname()
    with socket.create_connection(address) as hasty, socket.create_connection(address) as other:
        hasty.sendall(GET)
        number = await served.get()
        other.sendall(GET)
        await served.get()
        hasty.sendall(GET * MANY)
        other.sendall(UNMET)
        async with asyncio.timeout(10):
            order = [await served.get() for _ in range(MANY + 1)]
    assert order[0] == order[-1] == number
    listener.close()
    await server.stop(1.0)
