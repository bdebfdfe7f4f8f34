"""The contract of `object_store`, on every implementation: in memory, in a folder, on a real S3 server."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import (
    ObjectChanged,
    ObjectNotFound,
    ObjectStore,
    PutOutcome,
    ReadsVersions,
    copy_object,
    folders_in,
)
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.probe import probe_conditional_put
from tests.cloud_emulators import Cloud


@pytest.mark.slow
def test_what_was_put_can_be_read_whole_and_in_parts(any_store: ObjectStore) -> None:
    any_store.put("a/b", b"0123456789")
    assert any_store.get("a/b") == b"0123456789"
    assert any_store.get("a/b", 3) == b"3456789"
    assert any_store.get("a/b", 3, 4) == b"3456"
    assert any_store.get("a/b", 8, 10) == b"89"
    assert any_store.get("a/b", 10, 5) == b""
    assert any_store.get("a/b", 2, 0) == b""
    any_store.put("a/b", b"")
    assert any_store.get("a/b") == b""


@pytest.mark.slow
def test_a_replaced_object_is_not_read_as_the_version_that_was_listed(any_store: ObjectStore) -> None:
    any_store.put("a/b", b"0123456789")
    (before,) = any_store.list("a/")
    assert isinstance(any_store, ReadsVersions) == bool(before.etag)
    if not isinstance(any_store, ReadsVersions):
        return
    assert any_store.get_version("a/b", before.etag, 0, 10) == b"0123456789"
    assert any_store.get_version("a/b", before.etag, 3, 4) == b"3456"
    assert any_store.get_version("a/b", before.etag, 8, 10) == b"89"
    any_store.put("a/b", b"9876543210")
    with pytest.raises(ObjectChanged):
        any_store.get_version("a/b", before.etag, 3, 4)
    (after,) = any_store.list("a/")
    assert any_store.get_version("a/b", after.etag, 3, 4) == b"6543"
    any_store.delete(["a/b"])
    with pytest.raises((ObjectNotFound, ObjectChanged)):  # an emulator of Azure checks the condition first
        any_store.get_version("a/b", after.etag, 3, 4)


def test_an_absent_object_is_a_named_outcome(any_store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound, match="nothing/here"):
        any_store.get("nothing/here")
    with pytest.raises(ObjectNotFound):
        any_store.get_file("nothing/here", tmp_path / "copy")
    any_store.delete(["nothing/here"])


@pytest.mark.slow
def test_only_the_first_put_if_absent_lands(any_store: ObjectStore) -> None:
    """O1"""
    assert any_store.put_if_absent("log/1", b"mine") is PutOutcome.CREATED
    assert any_store.put_if_absent("log/1", b"theirs") is PutOutcome.EXISTS
    assert any_store.put_if_absent("log/1", b"mine") is PutOutcome.EXISTS
    assert any_store.get("log/1") == b"mine"


@pytest.mark.slow
def test_of_many_writers_of_one_key_exactly_one_is_told_that_it_landed(any_store: ObjectStore) -> None:
    """O1"""
    for position in range(5):
        bodies = [f"writer {writer}".encode() for writer in range(8)]
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda body, key=f"log/{position}": any_store.put_if_absent(key, body), bodies))
        assert outcomes.count(PutOutcome.CREATED) == 1
        assert any_store.get(f"log/{position}") == bodies[outcomes.index(PutOutcome.CREATED)]


def test_files_travel_both_ways_and_never_onto_an_existing_file(any_store: ObjectStore, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(bytes(range(256)) * 5_000)
    any_store.put_file("data/file", source)
    any_store.get_file("data/file", copy)
    assert copy.read_bytes() == source.read_bytes()
    with pytest.raises(FileExistsError):
        any_store.get_file("data/file", copy)


@pytest.mark.slow
def test_a_list_holds_every_key_with_the_prefix_and_no_other(any_store: ObjectStore) -> None:
    for key in ("a/x/1", "a/x/22", "a/y", "ab", "b/x/1"):
        any_store.put(key, b"abc")
    assert [info.key for info in any_store.list("a/")] == ["a/x/1", "a/x/22", "a/y"]
    assert [info.key for info in any_store.list("a/x/2")] == ["a/x/22"]
    assert sorted(info.key for info in any_store.list("a")) == ["a/x/1", "a/x/22", "a/y", "ab"]
    assert sorted(info.key for info in any_store.list("")) == ["a/x/1", "a/x/22", "a/y", "ab", "b/x/1"]
    assert list(any_store.list("nothing/")) == []
    assert {info.size for info in any_store.list("")} == {3}


def test_folders_are_named_once_and_nothing_else(any_store: ObjectStore) -> None:
    for key in ("a/x/1", "a/x/2/3", "a/y/1", "a/file", "ab/z/1"):
        any_store.put(key, b"")
    assert folders_in(any_store, "a/") == ["x", "y"]
    assert folders_in(any_store, "a/x/") == ["2"]
    assert folders_in(any_store, "none/") == []


def test_deleted_objects_are_gone_and_the_others_stay(any_store: ObjectStore) -> None:
    for key in ("a/1", "a/2", "a/3"):
        any_store.put(key, b"x")
    any_store.delete(["a/1", "a/3", "a/4"])
    assert [info.key for info in any_store.list("a/")] == ["a/2"]
    assert any_store.put_if_absent("a/1", b"again") is PutOutcome.CREATED


@pytest.mark.slow
def test_publish_makes_the_staged_object_visible_once_however_often_it_is_called(any_store: ObjectStore) -> None:
    """T2"""
    any_store.put("_staging/1", b"rows")
    sha256 = hashlib.sha256(b"rows").hexdigest()
    any_store.publish("_staging/1", "out/part-1", sha256)
    assert any_store.get("out/part-1") == b"rows"
    assert [info.key for info in any_store.list("_staging/")] == []
    any_store.publish("_staging/1", "out/part-1", sha256)
    any_store.put("_staging/1", b"rows")  # a crash between publishing and deleting the staged object
    any_store.publish("_staging/1", "out/part-1", sha256)
    assert any_store.get("out/part-1") == b"rows"
    assert [info.key for info in any_store.list("_staging/")] == []


def test_publish_never_replaces_other_content(any_store: ObjectStore) -> None:
    any_store.put("out/part-1", b"somebody else's")
    any_store.put("_staging/1", b"rows")
    expected = hashlib.sha256(b"rows").hexdigest()
    with pytest.raises(Corrupt, match=expected):
        any_store.publish("_staging/1", "out/part-1", expected)
    assert any_store.get("out/part-1") == b"somebody else's"
    assert any_store.get("_staging/1") == b"rows"


@pytest.mark.parametrize("dropped", [True, False])
def test_a_first_publish_that_others_have_overtaken_is_success(any_store: ObjectStore, dropped: bool) -> None:
    """A successor's recovery may publish first, and may die before deleting the staged object."""
    sha256 = hashlib.sha256(b"rows").hexdigest()
    any_store.put("_staging/1", b"rows")
    any_store.publish("_staging/1", "out/part-1", sha256)
    if not dropped:
        any_store.put("_staging/1", b"rows")
    any_store.publish("_staging/1", "out/part-1", sha256, fresh=True)
    assert any_store.get("out/part-1") == b"rows"
    assert [info.key for info in any_store.list("_staging/")] == []


def test_publish_of_what_is_nowhere_names_both_objects(any_store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound, match=r"_staging/1.*out/part-1"):
        any_store.publish("_staging/1", "out/part-1", "0" * 64)


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a\\b", "a/"])
def test_no_operation_takes_an_unsafe_key(any_store: ObjectStore, key: str, tmp_path: Path) -> None:
    """B1"""
    for operation in (
        lambda: any_store.put(key, b""),
        lambda: any_store.put_file(key, tmp_path),
        lambda: any_store.put_if_absent(key, b""),
        lambda: any_store.get(key),
        lambda: any_store.get_file(key, tmp_path / "copy"),
        lambda: any_store.delete([key]),
        lambda: any_store.publish(key, "a", ""),
        lambda: any_store.publish("a", key, ""),
    ):
        with pytest.raises(InvalidJob):
            operation()


def test_the_url_of_a_store_opens_the_same_objects_and_carries_no_secret(any_store: ObjectStore) -> None:
    any_store.put("a", b"x")
    assert "test" not in any_store.url.split("/")[0]
    assert any_store.url.startswith(("memory://", "file:///", "s3://", "abfss://", "gs://", "webhdfs://"))
    assert "?" not in any_store.url


@pytest.mark.slow
def test_an_object_is_copied_from_another_store_whole(any_store: ObjectStore, tmp_path: Path) -> None:
    """A store copies from a store of its own kind if possible; otherwise the copy passes through a file."""
    others = (MemoryStore(), LocalStore(tmp_path / "other"), any_store)
    content = bytes(range(256)) * 40_000
    for number, other in enumerate(others):
        other.put(f"from/{number}", content)
        for beside_work in (False, True):
            copy_object(other, f"from/{number}", any_store, f"to/{number}", beside_work=beside_work)
            assert any_store.get(f"to/{number}") == content
            if not beside_work:
                any_store.delete([f"to/{number}"])
        with pytest.raises(ObjectNotFound):
            copy_object(other, "from/nothing", any_store, "to/nothing")
    assert sorted(info.key for info in any_store.list("to/")) == ["to/0", "to/1", "to/2"]


@pytest.mark.slow
def test_the_probe_finds_that_clouds_create_exclusively(cloud: Cloud) -> None:
    store = open_store(cloud.new_url())
    probe_conditional_put(store, "probe")
    assert list(store.list("")) == []


@pytest.mark.slow
def test_a_container_or_bucket_that_is_not_there_is_named(cloud: Cloud) -> None:
    with pytest.raises(InvalidJob, match=r"does not exist: create it, or correct the URL (abfss|gs)://no"):
        open_store(cloud.new_url().replace("://", "://no", 1)).put("a", b"")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("abfss://container/prefix", "is not understood: use abfss://container@account"),
        ("abfss://container@account.example.org/x", "is not understood"),
        ("abfss://container:secret@account.dfs.core.windows.net/x", "must not carry credentials"),
        ("gs:///prefix", "names no bucket: use gs://"),
        ("gs://user:secret@bucket/x", "must not carry credentials"),
    ],
)
def test_urls_of_clouds_that_cannot_be_are_refused_without_their_secrets(url: str, text: str) -> None:
    with pytest.raises(InvalidJob, match=text) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
