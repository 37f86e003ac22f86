"""Play a case both ways at the same time: direct, and through a turnlog with its settings."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from conformance.cases import player
from conformance.cases.judge import Kept
from conformance.cases.reports import INPUTS, Case, Report, Run
from conformance.cases.ruling import write_rules
from kit import proxy

_BLOCK = 512
"""bytes: the unit of `st_blocks`."""


class Played(Struct, frozen=True, kw_only=True):
    """A case played both ways."""

    direct: Run
    through: Run
    kept: Kept
    log: Path
    """The file of turnlog's log lines."""
    ports: Mapping[str, str]
    """The two upstreams' ports, and the word that stands for either."""


async def play(case: Case, folder: Path) -> Played:
    """Play a case; all that is written stays below `folder`."""
    near, far = folder / "direct", folder / "through"
    near.mkdir()
    far.mkdir()
    script = INPUTS / f"{case.case}.json"
    async with (
        player.upstream(script, near / "upstream", listens=case.listens) as one,
        player.upstream(script, far / "upstream", listens=case.listens) as two,
    ):
        async with proxy.here(far, settings=_settings(case, two.origin, far)) as turnlog:
            adapted = _adapted(case, script, far / "case.json", turnlog.urls)
            direct, through = await asyncio.gather(
                player.client(script, one.origin),
                player.client(adapted, _origin(turnlog.urls[0])),
            )
            near_run = await settled(direct, one)
            far_run = await settled(through, two)
        return Played(
            direct=near_run,
            through=far_run,
            kept=kept(far, turnlog.stdout),
            log=turnlog.stdout,
            ports={str(one.port): "PORT", str(two.port): "PORT"},
        )


async def settled(report: Report, upstream: player.Upstream) -> Run:
    """Wait until the upstream has sent its answers, or noticed that nobody waits for them."""

    def look() -> Run | None:
        run = Run(report, upstream.entries())
        return run if run.settled() else None

    return await proxy.until(look, "the end of what is under way at the upstream")


def _settings(case: Case, origin: str, folder: Path) -> dict[str, object]:
    """Return what a case says of the proxy, as far as there are settings for it."""
    given = case.proxy_settings
    upstreams = {name: {"url": origin + path} for name, path in _upstream_paths(case).items()}
    words: list[str] = given.get("redact", [])
    patterns = [word for word in words if "[" in word]
    keys = [word for word in words if word not in patterns]
    limits = {
        "record": given.get("record_limit_bytes"),
        "store": given.get("store_limit_bytes"),
        "when_full": "forward_unrecorded" if given.get("when_full") == "serve" else None,
    }
    return {
        "upstreams": upstreams,
        "limits": {name: value for name, value in limits.items() if value is not None},
        "rules": write_rules(case, folder),
        "redact": {"headers": keys, "keys": keys, "patterns": patterns},
    }


def _upstream_paths(case: Case) -> dict[str, str]:
    paths: dict[str, str] = case.proxy_settings.get("upstreams", {})
    return paths or {"default": "/mcp" if case.transport == "mcp-streamable" else "/"}


def _adapted(case: Case, script: Path, target: Path, urls: tuple[str, ...]) -> Path:
    """Return a script whose client knows the URLs of several upstreams as turnlog names them.

    Of one upstream the path stays as it is.
    """
    if len(urls) == 1:
        return script
    paths = _upstream_paths(case).values()
    named = {path: urlsplit(url).path for path, url in zip(paths, urls, strict=True)}
    client = [{**spec, "path": named[spec["path"]]} for spec in case.client]
    content: dict[str, Any] = msgspec.json.decode(script.read_bytes())
    target.write_bytes(msgspec.json.encode(content | {"client": client}))
    return target


def _origin(url: str) -> str:
    return f"http://{urlsplit(url).netloc}"


def kept(folder: Path, log: Path) -> Kept:
    """Return what turnlog kept, once it has ended."""
    data = proxy.data_of(folder)
    return Kept(
        rows=proxy.rows(data),
        findings=proxy.findings(data),
        payloads=proxy.payloads(data),
        files={str(file): content for file, content in proxy.written(folder).items()},
        events=proxy.events_in(log),
        size=sum(file.stat().st_blocks * _BLOCK for file in data.rglob("*")),
    )
