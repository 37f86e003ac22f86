"""Call plain HTTP tools with httpx: python with_httpx.py URL."""

import sys
import time
from typing import Any

try:
    import httpx
except ImportError as error:
    sys.exit(f"{error}; install what this needs: pip install httpx")

from turnlog.client import Outcome, Retry, outcome_of_headers


def call(client: httpx.Client, tool: str, arguments: dict[str, Any]) -> str:
    """Call a tool; again where that is safe, and look first where nobody knows what happened."""
    for _ in range(3):
        response = client.post(f"/api/{tool}", json=arguments)
        match outcome_of_headers(response.headers):
            case None | Outcome(retry=None):
                return response.json()
            case Outcome(retry=Retry.SAFE, kind=kind, retry_after=seconds):
                print(f"{tool}: {kind}, again after {seconds} s")
                time.sleep(seconds or 0.1)
            case Outcome(retry=Retry.NEVER, kind=kind):
                return f"given up, {kind}"
            case Outcome(kind=kind):
                print(f"{tool}: {kind}, so look first")
                return call(client, "find_order", arguments)
    return "given up after three times"


def main(url: str) -> None:
    """Ask for a price, place an order, want the money back."""
    with httpx.Client(base_url=httpx.URL(url).join("/")) as client:
        for tool in ("quote", "place_order", "refund"):
            print(f"{tool}: {call(client, tool, {'order': 7})}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python with_httpx.py URL, as http://127.0.0.1:7411/mcp where turnlog listens"
        )
    main(sys.argv[1])
