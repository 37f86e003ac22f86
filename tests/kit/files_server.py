"""Two tools of the reference filesystem server, over stdin and stdout: for tests without Node."""

import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

server: MCPServer[Any] = MCPServer("files", version="1", log_level="ERROR")


@server.tool()
def edit_file(path: str, edits: list[dict[str, str]]) -> str:
    """Replace text in a file."""
    file = Path(path)
    text = file.read_text()
    for edit in edits:
        if edit["oldText"] not in text:
            raise ValueError(f"{edit['oldText']!r} is not in the file")
        text = text.replace(edit["oldText"], edit["newText"], 1)
    # As the reference server does: a file that is written in place is empty for a moment, and stays
    # empty if the server is killed then.
    new = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    new.write_text(text)
    new.replace(file)
    return text


@server.tool()
def read_text_file(path: str) -> str:
    """Return the text of a file."""
    return Path(path).read_text()


if __name__ == "__main__":
    sys.exit(server.run("stdio"))
