from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import lmdb
import pytest

from turnlog.core.pins import ServerIdentity
from turnlog.packs.lock import server_of
from turnlog.store import definitions
from turnlog.store.base import StoreError
from turnlog.store.definitions import MOST, MOST_SHOWN, Change, Listing
from turnlog.wire.tool_definition import KeptDefinition

HOUR = 3600 * 10**9
AT = 1_795_737_600 * 10**9


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def listing(
    *tools: str,
    server: str = "s@here",
    by: str = "me",
    at: int = AT,
    text: str = "",
    whole: bool = True,
) -> Listing:
    return Listing(
        server=server,
        by=by,
        at=at,
        tools={tool: digest(tool + text) for tool in tools},
        whole=frozenset(tools) if whole else None,
    )


def keep(data: Path, one: Listing) -> list[Change]:
    return definitions.keep(
        data, one, lambda key: KeptDefinition(b'"%s"' % key.hex().encode(), False)
    )


def tools(data: Path) -> list[str]:
    return [f"{server_of(one.server)}/{one.tool}" for one in definitions.shown(data)]


def test_a_file_that_was_only_begun_holds_nothing_and_is_filled(tmp_path: Path) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "data.mdb").touch()
    assert list(definitions.flaws(tmp_path)) == []
    assert definitions.shown(tmp_path) == []
    keep(tmp_path, listing("a"))
    assert tools(tmp_path) == ["s/a"]


def test_a_store_that_was_shown_nothing_has_nothing(tmp_path: Path) -> None:
    assert definitions.shown(tmp_path) == []
    assert definitions.find(tmp_path, [digest("a")]) == {}
    assert definitions.listed_whole(tmp_path) == set()
    assert definitions.changed(tmp_path, digest("a"), digest("b")) == []


def test_listed_definitions_are_found_by_server_and_tool(tmp_path: Path) -> None:
    keep(tmp_path, listing("b", "a"))
    keep(tmp_path, listing("z", server="other@there", whole=False))
    assert tools(tmp_path) == ["other/z", "s/a", "s/b"]
    assert definitions.listed_whole(tmp_path) == {"s@here"}
    (found,) = definitions.find(tmp_path, [digest("a"), digest("nothing")]).values()
    assert found.value == digest("a").hex()


def test_a_definition_is_made_once(tmp_path: Path) -> None:
    keep(tmp_path, listing("a"))

    def never(_: bytes) -> KeptDefinition:
        raise AssertionError

    definitions.keep(tmp_path, listing("a", server="other@there"), never)
    definitions.add(tmp_path, {digest("a"): KeptDefinition(b'"pinned"', True)}, AT)
    assert definitions.find(tmp_path, [digest("a")])[digest("a")].value == digest("a").hex()


def test_a_change_is_told_to_whom_it_is_one(tmp_path: Path) -> None:
    assert keep(tmp_path, listing("a", "b")) == []
    assert keep(tmp_path, listing("a", "b", by="you", text="2")) == []
    assert keep(tmp_path, listing("a", by="you", text="3", whole=False)) == [
        Change("a", digest("a2"), digest("a3"))
    ]
    assert definitions.changed(tmp_path, digest("a2"), digest("a3")) == ["other"]


def test_a_tool_missing_from_a_whole_list_is_gone(tmp_path: Path) -> None:
    keep(tmp_path, listing("a", "b"))
    keep(tmp_path, listing("a", whole=False))
    assert tools(tmp_path) == ["s/a", "s/b"]
    keep(tmp_path, listing("a"))
    assert tools(tmp_path) == ["s/a"]


def test_the_listing_of_another_credential_is_kept_for_a_day(tmp_path: Path) -> None:
    keep(tmp_path, listing("a", "b"))
    keep(tmp_path, listing("a", by="you", at=AT + 24 * HOUR))
    assert tools(tmp_path) == ["s/a", "s/b"]
    keep(tmp_path, listing("a", by="you", at=AT + 25 * HOUR))
    assert tools(tmp_path) == ["s/a"]


def test_a_repeated_listing_is_written_once_an_hour(tmp_path: Path) -> None:
    for minutes in (0, 59, 61, 90):
        keep(tmp_path, listing("a", at=AT + minutes * HOUR // 60))
    (one,) = definitions.shown(tmp_path)
    assert one.at == AT + 61 * HOUR // 60


def test_a_server_cannot_show_without_bound(tmp_path: Path) -> None:
    keep(tmp_path, listing(*(f"t{n}" for n in range(MOST_SHOWN + 5))))
    assert len(tools(tmp_path)) == MOST_SHOWN
    keep(tmp_path, listing("t1", "more"))
    assert tools(tmp_path) == ["s/t1"]
    keep(tmp_path, listing("t1", "more"))
    assert tools(tmp_path) == ["s/more", "s/t1"]


def test_definitions_that_nobody_shows_any_more_go_first_and_then_the_oldest(
    tmp_path: Path,
) -> None:
    keep(tmp_path, listing("shown", server="other@there", at=AT))
    for round_ in range(MOST // 500 + 2):
        names = (f"t{n}" for n in range(500))
        keep(tmp_path, listing(*names, text=str(round_), at=AT + round_ + 1))
    newest = MOST // 500 + 1
    found = definitions.find(
        tmp_path, [digest("shown"), digest("t1" + str(newest)), digest("t10"), digest("t00")]
    )
    assert set(found) == {digest("shown"), digest("t1" + str(newest))}


def test_a_folder_that_is_no_store_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "data.mdb").write_bytes(b"no store" * 2000)
    with pytest.raises(StoreError, match="definitions"):
        definitions.shown(tmp_path)


def test_threads_that_read_and_write_at_once_do_not_mix_up_the_tables(tmp_path: Path) -> None:
    # Each folder has its own environment, whose tables are opened anew: once is rarely enough.
    with ThreadPoolExecutor(4) as threads:
        for number in range(60):
            data = tmp_path / str(number)
            data.mkdir()
            one, other = listing("a", "b", server="s@here"), listing("c", server="t@there")
            jobs: list[Future[Any]] = [
                threads.submit(keep, data, one),
                threads.submit(definitions.shown, data),
                threads.submit(definitions.find, data, [digest("a")]),
                threads.submit(keep, data, other),
                threads.submit(definitions.listed_whole, data),
            ]
            for job in jobs:
                job.result()
            assert tools(data) == ["s/a", "s/b", "t/c"]
            assert list(definitions.flaws(data)) == []


BANK = ServerIdentity(target="https://bank.example:443", name="bank", version="1.0")


def test_what_was_seen_of_a_server_adds_up(tmp_path: Path) -> None:
    assert definitions.servers(tmp_path) == {}
    first = definitions.keep_servers(tmp_path, {"s@here": BANK}, AT)
    assert first == {"s@here": (ServerIdentity(), BANK)}
    # Another process has seen its key, but not what it says of itself.
    keyed = ServerIdentity(target=BANK.target, tls_key="sha256:0")
    definitions.keep_servers(tmp_path, {"s@here": keyed, "t@there": keyed}, AT)
    both = BANK.with_parts(keyed)
    assert definitions.servers(tmp_path) == {"s@here": both, "t@there": keyed}
    newer = ServerIdentity(version="1.1")
    news = definitions.keep_servers(tmp_path, {"s@here": newer, "t@there": keyed}, AT)
    assert news == {"s@here": (both, both.with_parts(newer))}
    assert definitions.servers(tmp_path)["s@here"] == both.with_parts(newer)
    assert list(definitions.flaws(tmp_path)) == []
    assert definitions.shown(tmp_path) == []


def test_a_folder_of_an_earlier_version_has_no_servers_and_takes_them(tmp_path: Path) -> None:
    (tmp_path / "definitions").mkdir()
    with lmdb.open(str(tmp_path / "definitions"), max_dbs=3) as env:
        for name in (b"texts", b"shown", b"whole"):
            env.open_db(name)
    assert definitions.servers(tmp_path) == {}
    assert definitions.listed_whole(tmp_path) == set()
    keep(tmp_path, listing("a"))
    definitions.keep_servers(tmp_path, {"s@here": BANK}, AT)
    assert tools(tmp_path) == ["s/a"]
    assert definitions.servers(tmp_path) == {"s@here": BANK}


def test_a_server_that_is_not_as_it_was_written_is_a_flaw(tmp_path: Path) -> None:
    definitions.keep_servers(tmp_path, {"s@here": BANK}, AT)
    with lmdb.open(str(tmp_path / "definitions"), max_dbs=4) as env:
        table = env.open_db(b"servers")
        with env.begin(write=True) as txn:
            value = txn.get(b"s@here", db=table)
            assert value is not None
            txn.put(b"s@here", bytes(value).replace(b"1.0", b"9.9"), db=table)
    assert list(definitions.flaws(tmp_path)) == [
        "what was seen last of the server 's@here' is not what was written"
    ]
