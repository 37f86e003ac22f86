"""What the reference servers are asked to do for the test of their packs: all tools, and failures."""

import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from conformance.matrix import rig
from conformance.matrix.sites import Closed, Page, site

GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


class Call(msgspec.Struct, frozen=True):
    """A call, the kind of error that it must come to, and whether its result is null."""

    tool: str
    arguments: dict[str, Any] = {}
    kind: str = ""
    null: bool = False


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A server's command, the folder that it works on, and the calls in order."""

    command: list[str | Path]
    folder: Path
    calls: list[Call]
    variables: dict[str, str] = {}


@contextmanager
def filesystem(folder: Path) -> Generator[Scene]:
    """Make a folder with files and empty ones, and a link that leads out of it."""
    root = folder / "files"
    (root / "empty").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\n")
    (root / "empty.txt").touch()
    (root / "pixel.png").write_bytes(b"\x89PNG")
    (folder / "outside.txt").write_text("not yours")
    (root / "link").symlink_to(folder / "outside.txt")
    yield Scene(
        command=[
            rig.node(),
            rig.node_package("@modelcontextprotocol/server-filesystem") / "dist" / "index.js",
            root,
        ],
        folder=root,
        calls=[*_file_reads(root), *_file_writes(root), *_file_failures(root, folder)],
    )


def _file_reads(root: Path) -> list[Call]:
    path = {"path": f"{root}/a.txt"}
    return [
        Call("read_file", path),
        Call("read_text_file", {**path, "head": 1}),
        Call("read_text_file", {"path": f"{root}/empty.txt"}),
        Call("read_media_file", {"path": f"{root}/pixel.png"}),
        Call("read_multiple_files", {"paths": [f"{root}/a.txt", f"{root}/none.txt"]}),
        Call("list_directory", {"path": f"{root}"}),
        Call("list_directory", {"path": f"{root}/empty"}),
        Call("list_directory_with_sizes", {"path": f"{root}/empty"}),
        Call("directory_tree", {"path": f"{root}/empty"}),
        Call("search_files", {"path": f"{root}", "pattern": "*.none"}),
        Call("get_file_info", path),
        Call("list_allowed_directories"),
    ]


def _file_writes(root: Path) -> list[Call]:
    edit = {"path": f"{root}/a.txt", "edits": [{"oldText": "one", "newText": "uno"}]}
    return [
        Call("write_file", {"path": f"{root}/new.txt", "content": "x"}),
        Call("write_file", {"path": f"{root}/new.txt", "content": "y"}),
        Call("edit_file", {**edit, "dryRun": True}),
        Call("edit_file", edit),
        Call("edit_file", edit, "invalid_request"),
        Call("create_directory", {"path": f"{root}/deep/er"}),
        Call("move_file", {"source": f"{root}/new.txt", "destination": f"{root}/deep/moved.txt"}),
        Call("move_file", {"source": f"{root}/deep", "destination": f"{root}/shallow"}),
    ]


def _file_failures(root: Path, outside: Path) -> list[Call]:
    long = "x" * 300
    return [
        Call("read_text_file", {"path": f"{outside}/outside.txt"}, "permission_denied"),
        Call("read_text_file", {"path": f"{root}/link"}, "permission_denied"),
        Call("write_file", {"path": "C:\\x", "content": ""}, "permission_denied"),
        Call("read_text_file", {"path": f"{root}/none.txt"}, "not_found"),
        Call("write_file", {"path": f"{root}/none/x.txt", "content": ""}, "not_found"),
        Call(
            "move_file",
            {"source": f"{root}/none", "destination": f"{root}/other"},
            "not_found",
        ),
        Call(
            "move_file",
            {"source": f"{root}/empty.txt", "destination": f"{root}/a.txt"},
            "invalid_request",
        ),
        Call("create_directory", {"path": f"{root}/a.txt"}, "invalid_request"),
        Call("list_directory", {"path": f"{root}/a.txt"}, "invalid_request"),
        Call("write_file", {"path": f"{root}/empty", "content": ""}, "invalid_request"),
        Call("read_text_file", {"path": f"{root}/a.txt", "head": 1, "tail": 1}, "invalid_request"),
        Call("read_text_file", {}, "invalid_request"),
        Call("write_file", {"path": f"{root}/{long}", "content": ""}, "tool_failed"),
    ]


@contextmanager
def memory(folder: Path) -> Generator[Scene]:
    """Keep the graph in a file of its own, in a folder that no call names."""
    root = folder / "graph"
    root.mkdir()
    ada = {"entities": [{"name": "Ada", "entityType": "person", "observations": ["writes"]}]}
    knows = {"relations": [{"from": "Ada", "to": "Bob", "relationType": "knows"}]}
    seen = {"observations": [{"entityName": "Ada", "contents": ["x"]}]}
    stranger = {"observations": [{"entityName": "Zed", "contents": ["x"]}]}
    yield Scene(
        command=[
            rig.node(),
            rig.node_package("@modelcontextprotocol/server-memory") / "dist" / "index.js",
        ],
        folder=root,
        variables={"MEMORY_FILE_PATH": str(root / "memory.jsonl")},
        calls=[
            Call("read_graph"),
            *(Call("create_entities", ada), Call("create_entities", ada)),
            *(Call("create_relations", knows), Call("create_relations", knows)),
            *(Call("add_observations", seen), Call("add_observations", seen)),
            Call("add_observations", stranger, "not_found"),
            Call("search_nodes", {"query": "nobody"}),
            Call("open_nodes", {"names": ["Ada"]}),
            Call("delete_observations", {"deletions": [{"entityName": "Ada", "observations": []}]}),
            *(Call("delete_relations", knows), Call("delete_relations", knows)),
            *(Call("delete_entities", {"entityNames": ["Ada"]}) for _ in range(2)),
            Call("create_entities", {}, "invalid_request"),
        ],
    )


@contextmanager
def git(folder: Path) -> Generator[Scene]:
    """Make a repository with two branches, in the middle of a merge that has stashed a change."""
    root, plain = folder / "repository", folder / "plain"
    plain.mkdir()
    _git(folder, "init", "--quiet", "--initial-branch", "main", str(root))
    for name in ("a.txt", "b.txt"):
        (root / name).write_text("1\n")
    _commit(root, "first")
    _git(root, "checkout", "--quiet", "-b", "other")
    (root / "b.txt").write_text("2\n")
    _commit(root, "second")
    _git(root, "checkout", "--quiet", "main")
    (root / "a.txt").write_text("stashed\n")
    _git(root, "merge", "--quiet", "--autostash", "--no-commit", "--no-ff", "other")
    (root / "c.txt").write_text("new\n")
    yield Scene(
        command=[rig.SERVERS / "mcp-server-git", "--repository", root],
        folder=root,
        variables=GIT,
        calls=[*_git_calls(root), *_git_failures(root, plain)],
    )


def _git(root: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        env=rig.environment(**GIT),
    )


def _commit(root: Path, message: str) -> None:
    _git(root, "add", ".")
    _git(root, "commit", "--quiet", "--message", message)


def _git_calls(root: Path) -> list[Call]:
    here = {"repo_path": str(root)}
    return [
        Call("git_commit", {**here, "message": "merge, with what was stashed"}),
        Call("git_status", here),
        Call("git_diff_unstaged", here),
        *(Call("git_add", {**here, "files": ["a.txt", "c.txt"]}) for _ in range(2)),
        Call("git_diff_staged", here),
        *(Call("git_reset", here) for _ in range(2)),
        Call("git_add", {**here, "files": ["."]}),
        Call("git_commit", {**here, "message": "third"}),
        Call("git_create_branch", {**here, "branch_name": "new"}),
        Call("git_branch", {**here, "branch_type": "local"}),
        Call("git_branch", {**here, "branch_type": "remote"}),
        Call("git_checkout", {**here, "branch_name": "other"}),
        Call("git_checkout", {**here, "branch_name": "HEAD~1"}),
        Call("git_diff", {**here, "target": "main"}),
        Call("git_log", here),
        Call("git_show", {**here, "revision": "HEAD"}),
    ]


def _git_failures(root: Path, plain: Path) -> list[Call]:
    here = {"repo_path": str(root)}
    # HEAD is detached by now.
    return [
        Call("git_create_branch", {**here, "branch_name": "x"}, "invalid_request"),
        Call(
            "git_create_branch",
            {**here, "branch_name": "new", "base_branch": "main"},
            "invalid_request",
        ),
        Call("git_create_branch", {**here, "branch_name": "x", "base_branch": "y"}, "not_found"),
        Call("git_commit", {**here, "message": "nothing"}, "invalid_request"),
        Call("git_status", {"repo_path": str(plain)}, "permission_denied"),
        Call("git_add", {**here, "files": ["../x"]}, "permission_denied"),
        Call("git_status", {"repo_path": f"{root}/none"}, "not_found"),
        Call("git_status", {"repo_path": f"{root}/.git/info"}, "not_found"),
        Call("git_checkout", {**here, "branch_name": "none"}, "not_found"),
        Call("git_show", {**here, "revision": "HEAD:none"}, "not_found"),
        Call("git_add", {**here, "files": ["none"]}, "not_found"),
        Call("git_branch", {**here, "branch_type": "all", "contains": "none"}, "not_found"),
        Call("git_branch", {**here, "branch_type": "none"}, "invalid_request"),
        Call("git_diff", {**here, "target": "--output=x"}, "invalid_request"),
        Call("git_status", {}, "invalid_request"),
    ]


@contextmanager
def fetch(folder: Path) -> Generator[Scene]:
    """Have a site that allows most of its pages, one that allows none, and none at all."""
    with site(Page) as pages, site(Closed) as closed, _nowhere() as nowhere:
        yield Scene(
            command=[rig.SERVERS / "mcp-server-fetch", "--allow-private-ips"],
            folder=folder / "none",
            variables=_fetch_variables(),
            calls=[
                Call("fetch", {"url": f"{pages}/page"}),
                Call("fetch", {"url": f"{pages}/page", "raw": True}),
                Call("fetch", {"url": f"{pages}/page", "max_length": 2}),
                Call("fetch", {"url": f"{pages}/page", "start_index": 9000}, null=True),
                Call("fetch", {"url": f"{pages}/blank"}, null=True),
                Call("fetch", {"url": f"{pages}/empty"}, null=True),
                Call("fetch", {"url": f"{pages}/private/x"}, "permission_denied"),
                Call("fetch", {"url": f"{closed}/x"}, "permission_denied"),
                Call("fetch", {"url": f"{nowhere}/x"}, "connect_failed"),
                Call("fetch", {"url": "none"}, "invalid_request"),
                Call("fetch", {"url": f"{pages}/page", "max_length": 0}, "invalid_request"),
            ],
        )


@contextmanager
def fetch_unasked(folder: Path) -> Generator[Scene]:
    """Let the server ask no site for its robots.txt, so that what the page says is told."""
    statuses = {
        400: "invalid_request",
        401: "unauthenticated",
        403: "permission_denied",
        404: "not_found",
        408: "response_timeout",
        410: "not_found",
        429: "rate_limited",
        500: "upstream_internal",
        502: "upstream_unavailable",
        503: "upstream_unavailable",
        504: "response_timeout",
    }
    with site(Page) as pages, _nowhere() as nowhere:
        yield Scene(
            command=[
                rig.SERVERS / "mcp-server-fetch",
                *("--allow-private-ips", "--ignore-robots-txt"),
            ],
            folder=folder / "none",
            variables=_fetch_variables(),
            calls=[
                *(
                    Call("fetch", {"url": f"{pages}/status/{status}"}, kind)
                    for status, kind in statuses.items()
                ),
                Call("fetch", {"url": f"{pages}/cut"}, "connection_lost"),
                Call("fetch", {"url": f"{pages}/drop"}, "connection_lost"),
                Call("fetch", {"url": f"{nowhere}/x"}, "connect_failed"),
                Call("fetch", {"url": "ftp://127.0.0.1/x"}, "invalid_request"),
            ],
        )


@contextmanager
def fetch_public(folder: Path) -> Generator[Scene]:
    """Let the server look at public addresses alone, as it does by itself."""
    with site(Page) as pages:
        yield Scene(
            command=[rig.SERVERS / "mcp-server-fetch"],
            folder=folder / "none",
            variables=_fetch_variables(),
            calls=[Call("fetch", {"url": f"{pages}/page"}, "permission_denied")],
        )


def _fetch_variables() -> dict[str, str]:
    # With Node in its path the server would install packages of npm when the first page comes.
    return {"PATH": str(rig.SERVERS), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


@contextmanager
def _nowhere() -> Generator[str]:
    """Yield the address of a port that refuses connections."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unheard.getsockname()[1]}"


@contextmanager
def time(folder: Path) -> Generator[Scene]:
    """Ask for times."""
    tokyo = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo"}
    yield Scene(
        command=[rig.SERVERS / "mcp-server-time", "--local-timezone", "Europe/Berlin"],
        folder=folder / "none",
        calls=[
            Call("get_current_time", {"timezone": "Europe/Berlin"}),
            Call("convert_time", {**tokyo, "time": "12:00"}),
            Call("get_current_time", {"timezone": "Mars/Olympus"}, "invalid_request"),
            Call("get_current_time", {"timezone": ""}, "invalid_request"),
            Call("get_current_time", {}, "invalid_request"),
            Call("convert_time", {**tokyo, "time": "25:00"}, "invalid_request"),
        ],
    )
