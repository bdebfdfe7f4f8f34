"""A store that refuses writes, and an overlay store whose writes go to a scratch store only."""

from pathlib import Path

import pytest

from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectNotFound, PutOutcome
from barrier_runtime.state.store.read_only import LinkedStore, ReadOnlyStore


def filled() -> MemoryStore:
    store = MemoryStore("job")
    store.put("job/data/1", b"one")
    store.put("job/log/1", b"log")
    return store


def test_reads_pass_and_each_write_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = filled()
    looked_at, file = ReadOnlyStore(store), tmp_path / "file"
    file.write_bytes(b"x")
    assert looked_at.get("job/data/1", 1) == b"ne"
    assert [info.key for info in looked_at.list("job/")] == ["job/data/1", "job/log/1"]
    looked_at.get_file("job/log/1", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"log"
    for write in (
        lambda: looked_at.put("job/data/1", b"x"),
        lambda: looked_at.put_file("job/new", file),
        lambda: looked_at.put_if_absent("job/new", b"x"),
        lambda: looked_at.delete(["job/data/1"]),
        lambda: looked_at.publish("job/data/1", "job/new", "00"),
    ):
        with pytest.raises(ProtocolViolation, match="nothing was changed"):
            write()
    assert store.keys() == ("job/data/1", "job/log/1")
    assert store.get("job/data/1") == b"one"


def test_of_the_store_below_only_what_is_linked_is_seen_and_nothing_is_written(tmp_path: Path) -> None:
    below, scratch = filled(), MemoryStore("scratch")
    store = LinkedStore(scratch, below)
    store.link({"job/data/1": "job/data/5"})
    assert store.get("job/data/5") == b"one"
    with pytest.raises(ObjectNotFound):
        store.get("job/log/1")
    assert store.put_if_absent("job/log/1", b"mine") is PutOutcome.CREATED
    store.put("job/data/1", b"mine")
    assert (store.get("job/data/1"), below.get("job/data/1")) == (b"mine", b"one")
    with pytest.raises(ProtocolViolation, match="only read"):
        store.put("job/data/5", b"x")
    store.delete(["job/data/5", "job/data/1"])
    assert below.keys() == ("job/data/1", "job/log/1")
    with pytest.raises(ObjectNotFound):
        store.get("job/data/5")
    with pytest.raises(ProtocolViolation):
        store._source.put("job/data/1", b"x")
