"""Stores' counts of their requests, as S3 bills requests."""

from pathlib import Path

from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.use import StoreCounts, counts_of, with_own_use


def test_a_folder_counts_what_s3_would_bill(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    (tmp_path / "file").write_bytes(b"x" * 100)
    store.put("a", b"12345")
    store.put_file("b", tmp_path / "file")
    store.put_if_absent("a", b"12")
    assert store.get("b", 10, 20) == b"x" * 20
    store.get_file("a", tmp_path / "copy")
    list(store.list(""))
    store.delete(["a"])
    assert counts_of(store) == StoreCounts(writes=4, reads=2, sent_bytes=107, received_bytes=25)


def test_a_store_with_counts_of_its_own_shares_the_rest(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    own = with_own_use(store)
    own.put("a", b"1")
    assert store.get("a") == b"1"
    assert (counts_of(own).writes, counts_of(store)) == (1, StoreCounts(reads=1, received_bytes=1))
