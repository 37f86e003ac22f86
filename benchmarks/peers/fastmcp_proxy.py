"""A peer: fastmcp's own proxy, run by the Python of its own environment, not by turnlog's.

Usage: python fastmcp_proxy.py URL PORT reused|default
"""

import asyncio
import importlib
import sys


async def serve(url: str, port: int, kind: str) -> None:
    """Front `url`: with one connected client for all calls, or the library's default."""
    # Imported by name: the package is absent where the types are checked.
    client = importlib.import_module("fastmcp").Client
    create_proxy = importlib.import_module("fastmcp.server").create_proxy
    options = {"host": "127.0.0.1", "port": port, "show_banner": False, "log_level": "error"}
    if kind == "default":
        await create_proxy(url).run_http_async(json_response=True, **options)
        return
    async with client(url) as connected:
        await create_proxy(connected).run_http_async(json_response=True, **options)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
