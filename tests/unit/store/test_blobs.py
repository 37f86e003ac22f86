"""`store.blobs`: content by its hash, in buckets of time."""

import os
import random
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.kinds import Gone
from turnlog.store import blobs
from turnlog.store.base import Blob, StoreError
from turnlog.store.blobs import BlobReader, BlobWriter, Bucket, BucketRewrite, RewriteBusy
from turnlog.store.log.epochs import lock_epoch


@given(data=st.binary(max_size=5000), redacted=st.booleans(), cut=st.booleans())
def test_a_blob_is_packed_and_unpacked(data: bytes, redacted: bool, cut: bool) -> None:
    blob = Blob(data, redacted=redacted, cut=cut)
    packed = blobs.pack(blob)
    assert packed.digest == sha256(data).digest()
    assert blobs.unpack_blob(packed.name[32:] + packed.value) == blob


def test_a_digest_that_is_known_is_taken_as_it_is() -> None:
    assert blobs.pack(Blob(b"content", digest=b"d" * 32)).digest == b"d" * 32


def test_only_what_is_larger_than_a_kilobyte_is_compressed() -> None:
    assert len(blobs.pack(Blob(b"a" * 1024)).value) == 1024
    assert len(blobs.pack(Blob(b"a" * 1025)).value) < 100


def test_large_content_is_compressed_where_that_halves_it() -> None:
    digits = random.Random(1).randbytes(100_000).hex().encode()
    words = b"".join(b"%d words of a text\n" % n for n in range(10_000))
    assert blobs.pack(Blob(digits)).value is digits
    assert len(blobs.pack(Blob(digits[:100_000])).value) < 60_000
    assert len(blobs.pack(Blob(words)).value) < len(words) // 3
    for content in (digits, words):
        packed = blobs.pack(Blob(content))
        assert blobs.unpack_blob(packed.name[32:] + packed.value) == Blob(content)


class Pair:
    """A writer with its reader, as a store has them."""

    def __init__(
        self, data: Path, *, boot: str = "now", epoch: int = 1, remembered: int = 100
    ) -> None:
        for name in ("blobs", "epochs"):
            (data / name).mkdir(exist_ok=True)
        self.reader = BlobReader(data / "blobs", boot, readonly=False)
        self.reports: list[StoreError] = []
        self.writer = BlobWriter(
            data,
            1000,
            self.reader,
            boot,
            epoch,
            report=self.reports.append,
            remembered=remembered,
        )

    def put(self, content: bytes, now: int) -> bytes:
        return self.writer.write([blobs.pack(Blob(content))], now)[0]

    def close(self) -> None:
        self.writer.close()
        self.reader.close()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def names(data: Path) -> list[str]:
    """Return the names of the buckets on disk."""
    return [bucket.name for bucket in blobs.buckets(data / "blobs")]


def test_a_blob_is_kept_once_in_each_bucket(tmp_path: Path, pair: Pair) -> None:
    handles = [pair.put(b"x" * 600, now) for now in (1, 2, 999, 1000, 1001)]
    assert names(tmp_path) == ["0-0", "1-0"]
    early, late = dict.fromkeys(handles)
    assert handles == [early] * 3 + [late] * 2
    pair.writer.trim(Bucket(0, 0))
    assert isinstance(pair.reader.read(early), Gone)
    assert pair.reader.read(late) == Blob(b"x" * 600)
    pair.writer.trim(Bucket(1, 0))
    assert isinstance(pair.reader.read(late), Gone)
    pair.close()


def test_many_blobs_at_once_come_back(pair: Pair) -> None:
    contents = [bytes([i]) * (i * 40) for i in range(200)]
    handles = pair.writer.write([blobs.pack(Blob(content)) for content in contents], 10)
    more = pair.put(b"more", 20)
    for handle, content in zip([*handles, more], [*contents, b"more"], strict=True):
        assert pair.reader.read(handle) == Blob(content)
    pair.close()


def test_large_blobs_at_once_come_back_too(pair: Pair) -> None:
    digits = random.Random(1).randbytes(2 << 20)
    sizes = [10, 600_000, 20, 500_000, 30, 2 << 20, 40, 600_000]
    contents = [digits[n : n + size] for n, size in enumerate(sizes)]
    given = [blobs.pack(Blob(content)) for content in [*contents, contents[1]]]
    handles = pair.writer.write(given, 10)
    assert [pair.reader.read(handle) for handle in handles] == list(
        map(Blob, [*contents, contents[1]])
    )
    assert len(set(handles)) == len(contents)
    pair.close()


def test_a_handle_of_a_blob_that_was_never_put_leads_to_nothing(pair: Pair) -> None:
    handle = pair.put(b"one", 10)
    strange = [b"", handle[:32], handle[:34], handle[:32] + b"\x94\x00\x00\xff\x00"]
    for wrong in strange:
        assert isinstance(pair.reader.read(wrong), Gone)
        assert pair.reader.read(wrong) in (Gone.UNSAVED, Gone.DAMAGED)
    pair.close()


def test_marks_that_were_changed_are_damaged_content(tmp_path: Path, pair: Pair) -> None:
    (handle,) = pair.writer.write([blobs.pack(Blob(b"one", redacted=True))], 10)
    pair.close()
    bucket = str(tmp_path / "blobs" / "0-0")
    with lmdb.open(bucket, map_size=1 << 40) as env, env.begin(write=True) as txn:
        ((key, run),) = list(txn.cursor())
        txn.put(key, bytes(run).replace(b"\x01one", b"\x00one"))
    again = Pair(tmp_path, epoch=2)
    assert isinstance(again.reader.read(handle), Gone)
    assert again.reader.read(handle) is Gone.DAMAGED
    again.close()


def test_the_places_of_the_last_blobs_are_remembered(tmp_path: Path) -> None:
    pair = Pair(tmp_path, remembered=4)
    first = [pair.put(b"%d" % i, 10) for i in range(6)]
    again = [pair.put(b"%d" % i, 10) for i in (2, 3, 4, 5)]
    assert again == first[2:]
    assert pair.put(b"0", 10) != first[0]
    assert pair.reader.read(first[0]) == pair.reader.read(pair.put(b"0", 10)) == Blob(b"0")
    pair.close()


def test_a_mark_belongs_to_its_own_blob(pair: Pair) -> None:
    same = [Blob(b"the same"), Blob(b"the same", redacted=True), Blob(b"the same")]
    handles = pair.writer.write([blobs.pack(blob) for blob in same], 10)
    assert [pair.reader.read(handle) for handle in handles] == same
    assert handles[0] == handles[2] != handles[1]
    pair.close()


def test_time_that_runs_backwards_keeps_the_bucket(tmp_path: Path, pair: Pair) -> None:
    pair.put(b"one", 5000)
    pair.put(b"two", 10)
    assert names(tmp_path) == ["5-0"]
    pair.close()


def test_unlinking_the_present_bucket_begins_another(tmp_path: Path, pair: Pair) -> None:
    first = pair.put(b"one", 10)
    pair.writer.trim(Bucket(0, 0))
    second = pair.put(b"two", 10)
    assert names(tmp_path) == ["0-1"]
    assert isinstance(pair.reader.read(first), Gone)
    assert pair.reader.read(second) == Blob(b"two")
    pair.close()


def test_a_bucket_that_another_process_unlinked_is_begun_anew(tmp_path: Path, pair: Pair) -> None:
    pair.put(b"one", 10)
    other = Pair(tmp_path, epoch=2)
    other.writer.trim(Bucket(0, 0))
    handle = pair.put(b"two", 10)
    assert pair.reader.read(handle) == Blob(b"two")
    pair.close()
    other.close()


def test_a_bucket_open_when_the_machine_went_down_is_not_trusted(
    tmp_path: Path, pair: Pair
) -> None:
    handle = pair.put(b"one", 10)
    mark = next((tmp_path / "blobs" / "0-0").glob("written-*"))
    pair.close()
    assert not mark.exists()
    mark.touch()
    restarted = Pair(tmp_path, boot="later")
    assert isinstance(restarted.reader.read(handle), Gone)
    again = restarted.put(b"two", 10)
    assert restarted.reader.read(again) == Blob(b"two")
    restarted.close()


def test_attempts_of_a_killed_process_are_adopted(tmp_path: Path, pair: Pair) -> None:
    handle = pair.put(b"one", 10)
    pair.close()
    (tmp_path / "blobs" / "0-0" / "written-now-1").touch()
    living = lock_epoch(tmp_path / "epochs", 3)
    assert living is not None
    (tmp_path / "blobs" / "0-0" / "written-now-3").touch()
    other = Pair(tmp_path, epoch=2)
    os.utime(tmp_path / "epochs", (0, 0))
    other.put(b"two", 10)
    # Who took the lock of the dead would look like them.
    assert (tmp_path / "epochs").stat().st_mtime == 0
    marks = sorted(path.name for path in (tmp_path / "blobs" / "0-0").glob("written-*"))
    assert marks == ["written-now-2", "written-now-3"]
    assert other.reader.read(handle) == Blob(b"one")
    other.close()
    living.release()


def test_damaged_content_is_no_content(tmp_path: Path, pair: Pair) -> None:
    packed = blobs.pack(Blob(b"x" * 3000))
    wrong = blobs.Packed(packed.name, packed.value[:-3] + b"abc")
    other = blobs.Packed(sha256(b"other").digest() + b"\0", b"\0not the content")
    for handle in pair.writer.write([wrong, other], 10):
        assert isinstance(pair.reader.read(handle), Gone)
    pair.close()


def test_other_files_are_no_buckets(tmp_path: Path, pair: Pair) -> None:
    pair.put(b"one", 10)
    (tmp_path / "blobs" / "notes").mkdir()
    assert names(tmp_path) == ["0-0"]
    assert blobs.size(tmp_path / "blobs", Bucket(9, 9)) == 0
    assert blobs.buckets(tmp_path / "nothing") == []
    pair.close()


def open_files(data: Path) -> list[str]:
    """Return what this process has open in the folder of buckets."""
    links: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith(str(data / "blobs"))]


def test_a_reader_lets_go_of_what_another_process_unlinked(tmp_path: Path, pair: Pair) -> None:
    first, second = pair.put(b"one", 10), pair.put(b"two", 1010)
    pair.writer.close()
    assert pair.reader.read(first) == Blob(b"one")
    Pair(tmp_path, epoch=2).writer.trim(Bucket(0, 0))
    assert isinstance(pair.reader.read(first), Gone)
    assert pair.reader.read(second) == Blob(b"two")
    assert {Path(name).parent.name for name in open_files(tmp_path)} == {"1-0"}
    pair.close()


def test_a_bucket_made_anew_under_the_same_name_is_another(tmp_path: Path, pair: Pair) -> None:
    first = pair.put(b"one", 10)
    assert pair.reader.read(first) == Blob(b"one")
    Pair(tmp_path, epoch=2).writer.trim(Bucket(0, 0))
    other = Pair(tmp_path, epoch=3)
    second = other.put(b"two", 10)
    assert names(tmp_path) == ["0-0"]
    assert pair.reader.read(second) == Blob(b"two")
    third = pair.put(b"three", 10)
    assert other.reader.read(third) == Blob(b"three")
    pair.close()
    other.close()


def test_reading_makes_no_bucket(tmp_path: Path, pair: Pair) -> None:
    (tmp_path / "blobs" / "5-0").mkdir()
    assert isinstance(pair.reader.read(bytes(32)), Gone)
    assert list((tmp_path / "blobs" / "5-0").iterdir()) == []
    pair.close()


def test_a_removal_begun_by_a_killed_process_is_finished(tmp_path: Path, pair: Pair) -> None:
    pair.put(b"one", 10)
    left = tmp_path / "blobs" / "gone-0-0-7"
    left.mkdir()
    (left / "data.mdb").write_bytes(b"half")
    pair.writer.trim(Bucket(0, 0))
    assert [left.name for left in (tmp_path / "blobs").iterdir()] == ["trimmed-0-0"]
    pair.close()


def test_other_content_under_a_digest_is_told_from_none(tmp_path: Path, pair: Pair) -> None:
    fine = pair.put(b"one", 10)
    wrong = blobs.Packed(sha256(b"two").digest() + b"\0", b"\0twX")
    (handle,) = pair.writer.write([wrong], 10)
    assert pair.reader.read(handle) is Gone.DAMAGED
    assert pair.reader.read(fine) == Blob(b"one")
    assert pair.reader.read(bytes(32)) is Gone.UNSAVED
    pair.close()


def test_a_trimmed_blob_says_so_also_where_its_bucket_was_begun_anew(
    tmp_path: Path, pair: Pair
) -> None:
    first = pair.put(b"one", 10)
    Pair(tmp_path, epoch=2).writer.trim(Bucket(0, 0))
    assert pair.reader.read(first) is Gone.TRIMMED
    other = Pair(tmp_path, epoch=3)
    other.put(b"two", 20)
    assert names(tmp_path) == ["0-0"]
    assert pair.reader.read(first) is Gone.TRIMMED
    other.writer.trim(Bucket(0, 0))
    assert pair.reader.read(first) is Gone.TRIMMED
    pair.close()
    other.close()


@pytest.mark.parametrize("is_file_empty", [False, True])
def test_a_trimmed_blob_says_so_also_where_its_bucket_was_begun_anew_and_holds_nothing_yet(
    tmp_path: Path, pair: Pair, is_file_empty: bool
) -> None:
    first = pair.put(b"one", 10)
    pair.writer.trim(Bucket(0, 0))
    bucket = tmp_path / "blobs" / "0-0"
    bucket.mkdir()
    if is_file_empty:
        (bucket / "data.mdb").touch()
    else:
        lmdb.open(str(bucket), map_size=1 << 40).close()
    assert pair.reader.read(first) is Gone.TRIMMED
    assert list(blobs.flaws(tmp_path / "blobs", "now")) == []
    pair.close()


def test_more_buckets_can_be_read_than_the_address_space_holds(tmp_path: Path, pair: Pair) -> None:
    handles = [pair.put(b"%d" % day, 1000 * day) for day in range(140)]
    pair.writer.close()
    assert all(isinstance(pair.reader.read(handle), Blob) for handle in handles)
    assert len({Path(name).parent for name in open_files(tmp_path)}) <= blobs.MOST_OPEN
    pair.close()


def test_a_bucket_that_went_without_a_mark_is_damaged(tmp_path: Path, pair: Pair) -> None:
    handle = pair.put(b"one", 10)
    pair.writer.close()
    shutil.rmtree(tmp_path / "blobs" / "0-0")
    assert pair.reader.read(handle) is Gone.DAMAGED
    pair.close()


def test_payloads_lost_in_a_machine_crash_are_unsaved_before_and_after_their_bucket_is_dropped(
    tmp_path: Path, pair: Pair
) -> None:
    handle = pair.put(b"one", 10)
    later = Pair(tmp_path, epoch=2, boot="another start")
    assert later.reader.read(handle) is Gone.UNSAVED
    later.put(b"two", 20)
    assert later.reader.read(handle) is Gone.UNSAVED
    later.close()


def test_a_blob_that_is_missing_at_the_end_of_a_whole_bucket_is_damaged(
    tmp_path: Path, pair: Pair
) -> None:
    pair.put(b"one", 10)
    handle = pair.put(b"two", 20)
    pair.close()
    bucket = str(tmp_path / "blobs" / "0-0")
    with lmdb.open(bucket, map_size=1 << 40) as env, env.begin(write=True) as txn:
        cursor = txn.cursor()
        assert cursor.last()
        cursor.delete()
    again = Pair(tmp_path, epoch=2)
    assert again.reader.read(handle) is Gone.DAMAGED
    again.close()


# -- rewritten buckets ---------------------------------------------------------------------------


def test_a_rewritten_bucket_lacks_what_was_dropped_and_keeps_all_places(
    tmp_path: Path, pair: Pair
) -> None:
    contents = [bytes([i]) * 900 for i in range(100)]
    handles = pair.writer.write([blobs.pack(Blob(content)) for content in contents], 10)
    pair.writer.close()
    drop = {blobs.number_in_bucket(handle) for handle in handles[3:70]}

    with BucketRewrite(tmp_path / "blobs", Bucket(0, 0), drop) as rewrite:
        rewrite.copy_some()
        rewrite.swap()

    read = [pair.reader.read(handle) for handle in handles]
    kept = [*map(Blob, contents[:3]), *67 * [Gone.PURGED], *map(Blob, contents[70:])]
    assert read == kept
    assert names(tmp_path) == ["0-0"]
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["0-0.1"]
    assert contents[50] not in (tmp_path / "blobs" / "0-0.1" / "data.mdb").read_bytes()
    assert list(blobs.flaws(tmp_path / "blobs", "now")) == []
    pair.close()


def test_a_writer_goes_on_in_the_rewritten_bucket(tmp_path: Path, pair: Pair) -> None:
    first, second = pair.put(b"one", 10), pair.put(b"two", 10)
    with BucketRewrite(
        tmp_path / "blobs", Bucket(0, 0), {blobs.number_in_bucket(first)}
    ) as rewrite:
        rewrite.copy_some()
        late = pair.put(b"put while it was copied", 10)
        assert pair.writer.is_in_place()
        rewrite.swap()
    assert not pair.writer.is_in_place()

    third, again = pair.put(b"three", 10), pair.put(b"one", 10)

    assert pair.writer.is_in_place()
    found = [pair.reader.read(handle) for handle in (first, second, late, third, again)]
    assert found == [
        Gone.PURGED,
        *map(Blob, (b"two", b"put while it was copied", b"three", b"one")),
    ]
    assert blobs.buckets(tmp_path / "blobs") == [Bucket(0, 0)]
    pair.close()


def test_a_reader_in_another_process_finds_the_rewritten_bucket(tmp_path: Path, pair: Pair) -> None:
    first, second = pair.put(b"one", 10), pair.put(b"two", 10)
    other = BlobReader(tmp_path / "blobs", "now", readonly=False)
    assert other.read(second) == Blob(b"two")
    for drop in ({blobs.number_in_bucket(first)}, set[int]()):
        with BucketRewrite(tmp_path / "blobs", Bucket(0, 0), drop) as rewrite:
            rewrite.swap()
    assert other.read(second) == Blob(b"two")
    assert other.read(first) is Gone.PURGED
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["0-0.2"]
    other.close()
    pair.close()


def test_of_two_versions_the_newer_counts_and_the_older_is_removed(
    tmp_path: Path, pair: Pair
) -> None:
    handle = pair.put(b"one", 10)
    pair.writer.close()
    folder = tmp_path / "blobs"
    shutil.copytree(folder / "0-0", tmp_path / "older")
    with BucketRewrite(folder, Bucket(0, 0), {blobs.number_in_bucket(handle)}) as rewrite:
        rewrite.swap()
    (tmp_path / "older").rename(folder / "0-0")  # as a process that was killed leaves it

    assert pair.reader.read(handle) is Gone.PURGED
    blobs.retire_older(folder, Bucket(0, 0))
    assert [path.name for path in folder.iterdir()] == ["0-0.1"]
    pair.close()


def test_giving_up_a_bucket_gives_up_a_version_that_a_killed_purge_has_left(
    tmp_path: Path, pair: Pair
) -> None:
    handle = pair.put(b"one", 10)
    pair.writer.close()
    folder = tmp_path / "blobs"
    shutil.copytree(folder / "0-0", folder / "0-0.1")
    pair.writer.expire(Bucket(0, 0))
    blobs.sweep(folder)
    assert pair.reader.read(handle) is Gone.EXPIRED
    assert [path.name for path in folder.iterdir()] == ["expired-0-0"]
    pair.close()


def test_one_process_rewrites_at_a_time_and_removes_what_another_left(
    tmp_path: Path, pair: Pair
) -> None:
    folder = tmp_path / "blobs"
    for name in ("gone-0-0-rewritten", "draft-0-0"):
        (folder / name).mkdir()
        (folder / name / "data.mdb").write_bytes(b"content")
    with blobs.rewriting(folder):
        assert list(folder.iterdir()) == []
        with pytest.raises(RewriteBusy, match="wait until it has ended"), blobs.rewriting(folder):
            pass
    with blobs.rewriting(folder):
        pass
    pair.close()


def test_a_rewritten_bucket_that_is_given_up_says_why(tmp_path: Path, pair: Pair) -> None:
    handle = pair.put(b"one", 10)
    with BucketRewrite(tmp_path / "blobs", Bucket(0, 0), set[int]()) as rewrite:
        rewrite.swap()
    pair.writer.trim(Bucket(0, 0))
    assert pair.reader.read(handle) is Gone.TRIMMED
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["trimmed-0-0"]
    pair.close()


def test_a_bucket_that_was_open_when_the_machine_went_down_is_removed_in_place_of_being_rewritten(
    tmp_path: Path, pair: Pair
) -> None:
    handle = pair.put(b"one", 10)
    pair.close()
    (tmp_path / "blobs" / "0-0" / "written-before-1").touch()
    assert not blobs.is_rewritable(tmp_path / "blobs", Bucket(0, 0), "now")
    assert not blobs.is_rewritable(tmp_path / "blobs", Bucket(7, 0), "now")
    assert pair.reader.read(handle) is Gone.UNSAVED
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["unsaved-0-0"]


def test_a_damaged_bucket_is_not_rewritten(tmp_path: Path, pair: Pair) -> None:
    pair.put(b"one", 10)
    pair.close()
    bucket = str(tmp_path / "blobs" / "0-0")
    with lmdb.open(bucket, map_size=1 << 40) as env, env.begin(write=True) as txn:
        ((key, _),) = list(txn.cursor())
        txn.put(key, b"no block")
    with (
        BucketRewrite(tmp_path / "blobs", Bucket(0, 0), set[int]()) as rewrite,
        pytest.raises(StoreError, match="are damaged"),
    ):
        rewrite.copy_some()
    assert names(tmp_path) == ["0-0"]
