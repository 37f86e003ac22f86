"""Names of servers in turnlog.lock."""

import pytest

from turnlog.packs.lock import COMMAND, lock_name, place_of, server_of

HERE = "/srv/repo"
URL = ("http://127.0.0.1:9000", "/mcp", "", "")


@pytest.mark.promise("PROV-7")
def test_a_lock_name_has_server_host_and_a_digest_of_the_place() -> None:
    name = lock_name("files", URL, HERE)
    assert name.startswith("files@127.0.0.1:9000-")
    assert (server_of(name), bool(place_of(name))) == ("files", True)
    assert (server_of("files"), place_of("files")) == ("files", "")
    others = [("https://127.0.0.1:9000", *URL[1:]), (*URL[:3], "project=1"), (URL[0], "/x", "", "")]
    assert len({name, *(lock_name("files", other, HERE) for other in others)}) == 4


@pytest.mark.parametrize(("folder", "same"), [("/srv/repo", True), ("/srv/repo/a", False)])
def test_a_working_directory_is_relative_to_the_locks_folder(folder: str, same: bool) -> None:
    there = lock_name("git", (COMMAND, "/usr/bin/server", "-v", "/home/me/repo"), "/home/me/repo")
    here = lock_name("git", (COMMAND, "/usr/bin/server", "-v", folder), HERE)
    assert here.startswith("git@server-")
    assert (here == there) is same


def test_a_working_directory_elsewhere_is_absolute() -> None:
    names = {lock_name("git", (COMMAND, "s", folder), HERE) for folder in ("/a", "/b", "/srv/repo")}
    assert len(names) == 3
