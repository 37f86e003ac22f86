"""Tool servers that are started by a command, behind Streamable HTTP (MCP, transports).

To the rest of the proxy they look like servers that are reached over HTTP: a request goes out, an
answer comes back, every failure is a value.
"""

import asyncio
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from turnlog.core.kinds import Phase
from turnlog.core.pins import COMMAND
from turnlog.engine.tools.tool_cache import ActiveRules
from turnlog.exchange.principal import PrincipalNames
from turnlog.observe.events import Log
from turnlog.record.errors import Failure, Progress
from turnlog.record.recorder import Recorder
from turnlog.settings.model import UpstreamSettings
from turnlog.transport.http_client import Answer, Content, Interim
from turnlog.transport.routes import Target
from turnlog.wire.endpoint import RpcRefusal
from turnlog.wire.mcp import PARSE_ERROR

from .child import start
from .command_endpoint import CommandEndpoint, EndpointRequest, refusing
from .startup import startup_limit
from .supervisor import Supervisor

_SWEEP: Final = 30.0
_NOTICE: Final = 5.0
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


class Commands:
    """All command upstreams, by the origin that stands for each. An async context manager."""

    def __init__(
        self,
        upstreams: Mapping[str, UpstreamSettings],
        log: Log,
        recorder: Recorder,
        rules: ActiveRules,
        clean: Callable[[str], str],
        principals: PrincipalNames,
    ) -> None:
        self._clean = clean
        self._principals = principals
        self._tasks = asyncio.TaskGroup()
        self._recorder = recorder
        self._rules = rules
        self._fronts = {
            f"{COMMAND}{name}": self._front(name, upstream, log, recorder)
            for name, upstream in upstreams.items()
            if upstream.command
        }

    def _front(
        self, name: str, upstream: UpstreamSettings, log: Log, recorder: Recorder
    ) -> CommandEndpoint:
        startup = partial(startup_limit, self._rules, name)

        def lane(renames: bool) -> Supervisor:
            return Supervisor(
                name,
                partial(start, upstream.command, upstream.env, upstream.cwd),
                log,
                recorder,
                self._tasks,
                startup,
                self._clean,
                renames=renames,
            )

        return CommandEndpoint(lane, upstream.share, self._principals)

    async def __aenter__(self) -> "Commands":
        """Begin."""
        await self._tasks.__aenter__()
        self._sweeping = self._tasks.create_task(self._sweep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End all processes."""
        self._sweeping.cancel()
        for front in self._fronts.values():
            for lane in front.lanes:
                lane.end()
        await self._tasks.__aexit__(None, None, None)

    async def _sweep(self) -> None:
        """End the processes that nobody has used for long."""
        while True:
            await asyncio.sleep(_SWEEP)
            now = asyncio.get_running_loop().time()
            for front in self._fronts.values():
                front.rest(now)

    async def send(
        self,
        target: Target,
        method: str,
        resource: str,
        lines: bytes,
        body: Content,
        progress: Progress,
        *,
        length: int | None,
        interim: Interim | None = None,
    ) -> Answer:
        """Carry out one request, as `Upstreams.send` does. Raises `Failure`."""
        progress.phase = Phase.CONNECTING
        whole = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
        one_line = _on_one_line(whole)
        if one_line is None:
            return refusing(b"", RpcRefusal(PARSE_ERROR, "the body is no JSON-RPC message"))
        asked = EndpointRequest(method, _fields(lines), one_line, progress)
        return await self._fronts[target.origin].answer(asked)

    def notify(
        self, target: Target, resource: str, lines: bytes, body: bytes
    ) -> asyncio.Task[None]:
        """Send a message that gets no answer."""
        return self._tasks.create_task(self._notify(target, resource, lines, body))

    async def _notify(self, target: Target, resource: str, lines: bytes, body: bytes) -> None:
        try:
            async with asyncio.timeout(_NOTICE):
                await self.send(target, "POST", resource, lines, body, Progress(), length=None)
        except (Failure, TimeoutError):
            return
        except Exception as error:  # noqa: BLE001 - it is logged; nobody waits for this
            self._recorder.faulted(error)


def _on_one_line(body: bytes) -> bytes | None:
    """Return a body as the one line that it has to be for a command; `None` for what is no JSON.

    In JSON line ends stand between values alone; whoever reads less strictly must not let them
    make several messages of one. A byte order mark is no JSON (RFC 8259, section 8.1): a command that
    several share may end at one.
    """
    body = body.removeprefix(BOM_UTF8)
    if b"\n" not in body and b"\r" not in body:
        return body
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return body.translate(_LINE_ENDS)


def _fields(lines: bytes) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in lines.split(b"\r\n") if line)
    return {name.lower(): value.strip() for name, _, value in pairs}
