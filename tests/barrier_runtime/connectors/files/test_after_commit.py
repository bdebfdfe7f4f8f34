"""Deferred clean-up of file commits: no commit waits for the clean-up, and a successor finishes it after a crash."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import DeltaSink, JsonlSink
from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.connectors.files.sink.commit_record import live_files
from barrier_runtime.connectors.files.sink.compaction import Compaction
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.afterwards import Afterwards
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.s3.by_boto3 import S3Store
from barrier_runtime.state.store.s3.by_obstore import ObstoreS3Store
from tests.waiting import until


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Deletions in S3 wait for this."""
    go, delete = threading.Event(), ObstoreS3Store.delete

    def late(store: ObstoreS3Store, keys: Iterable[str]) -> None:
        keys = list(keys)
        if any("_staging/" in key and "probe" not in key for key in keys):
            assert go.wait(60)
        delete(store, keys)

    monkeypatch.setattr(ObstoreS3Store, "delete", late)
    yield go
    go.set()


def opened(url: str, token: int = 1) -> JsonlSink:
    sink = JsonlSink(url)
    sink.open(SinkContext("job", "out", token, 0, 1, open_store, JOB_STORE, "lineage"))
    return sink


JOB_STORE = MemoryStore("job of test_after_commit")


def staged(sink: JsonlSink, number: int, checkpoint: int) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.record_batch({"n": [number]}))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def in_staging(url: str) -> list[str]:
    return [info.key for info in open_store(url).list("_staging/")]


def rows(url: str) -> list[bytes]:
    store = open_store(url)
    return [line for file in live_files(read_commit_log(store, "job", "out")) for line in store.get(file.name).split()]


@pytest.mark.slow
def test_a_commit_does_not_wait_for_the_deletion_of_its_staged_object(
    s3_url: Callable[[str], str], held: threading.Event
) -> None:
    url = s3_url("out")
    sink = opened(url)
    for checkpoint in (1, 2):
        committable = staged(sink, checkpoint, checkpoint)
        sink.commit(committable)
        sink.commit_globally(checkpoint, [committable])
    assert rows(url) == [b'{"n":1}', b'{"n":2}']
    assert len(in_staging(url)) == 2
    held.set()
    until(lambda: in_staging(url) == [])
    sink.close()


@pytest.mark.slow
def test_a_successor_sweeps_what_a_dead_process_has_not_deleted(
    s3_url: Callable[[str], str], held: threading.Event
) -> None:
    url = s3_url("out")
    dead = opened(url)
    decided = staged(dead, 1, 1)
    dead.commit(decided)
    assert len(in_staging(url)) == 1
    held.set()  # unblocks the successor; the deletion of the dead process is not needed any more
    successor = opened(url, token=2)
    successor.recover([decided])
    successor.commit_globally(1, [decided])
    until(lambda: in_staging(url) == [])
    assert rows(url) == [b'{"n":1}']
    dead.close()
    successor.close()


@pytest.mark.parametrize("place", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_compacted_file_whose_staged_object_was_left_does_not_come_back(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = str(tmp_path / "out") if place == "folder" else request.getfixturevalue("s3_url")("out")
    store, left, decided = open_store(url), dict[str, bytes](), b""
    dead = opened(url)
    dead.end_of_input()  # nothing is postponed
    for checkpoint in (1, 2, 3):
        decided = staged(dead, checkpoint, checkpoint)
        left = {key: store.get(key) for key in in_staging(url)}
        dead.commit(decided)
        dead.commit_globally(checkpoint, [decided])
    dead.close()
    for key, data in left.items():  # the process died before it deleted them
        store.put(key, data)
    for hours in (0, 2, 4):
        now_ms = (time.time_ns() // 1_000_000) + hours * 3_600_000
        Compaction(store, "job", "out", 1 << 20, 3_600_000, partial(int, now_ms)).run()
    successor = opened(url, token=2)
    successor.recover([decided])
    successor.commit_globally(3, [decided])
    until(lambda: in_staging(url) == [])
    visible = [info.key for info in store.list("") if not info.key.startswith("_")]
    assert [line for key in visible for line in store.get(key).split()] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    assert rows(url) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    successor.close()


@pytest.mark.slow
def test_the_last_commit_of_an_input_leaves_nothing_staged(s3_url: Callable[[str], str]) -> None:
    url = s3_url("out")
    sink = opened(url)
    sink.end_of_input()
    sink.commit(staged(sink, 1, 1))
    assert in_staging(url) == []
    sink.close()


@pytest.mark.slow
def test_the_last_commit_of_an_input_waits_for_the_sweep_of_the_start(
    s3_url: Callable[[str], str], held: threading.Event
) -> None:
    url = s3_url("out")
    dead = opened(url)
    decided = staged(dead, 1, 1)
    staged(dead, 2, 2)
    successor = opened(url, token=2)
    successor.recover([decided])
    assert in_staging(url) != []
    successor.end_of_input()
    threading.Timer(0.2, held.set).start()
    successor.commit(staged(successor, 2, 2))
    assert in_staging(url) == []
    dead.close()
    successor.close()


@pytest.mark.slow
def test_a_commit_sends_one_request_for_a_file_and_one_for_its_record(
    s3_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for kind in (ObstoreS3Store, S3Store):
        retrying = kind._retrying

        def counting(store: Any, operation: str, key: str, call: Any, retrying: Any = retrying) -> Any:
            if threading.current_thread() is threading.main_thread():
                asked.append(operation)
            return retrying(store, operation, key, call)

        monkeypatch.setattr(kind, "_retrying", counting)
    sink = opened(s3_url("out"))
    first = staged(sink, 1, 1)
    sink.commit(first)
    sink.commit_globally(1, [first])
    asked.clear()
    second = staged(sink, 2, 2)
    assert asked == ["put"]
    asked.clear()
    sink.commit(second)
    assert asked == ["publish"]
    asked.clear()
    sink.commit_globally(2, [second])
    assert asked == ["put_if_absent"]
    sink.close()


def test_work_behind_commits_is_bounded_and_done_in_order() -> None:
    go, done, afterwards = threading.Event(), list[int](), Afterwards("sink 'out'")

    def work(number: int) -> None:
        assert go.wait(60)
        done.append(number)

    for number in range(16):
        afterwards.do(partial(work, number))
    adding = threading.Thread(target=lambda: afterwards.do(lambda: done.append(-1)))
    adding.start()
    go.set()
    adding.join()
    until(lambda: len(done) == 17)
    assert [each for each in done if each >= 0] == list(range(16))
    afterwards.close()
    afterwards.do(lambda: done.append(99))
    assert done[-1] == 99


def test_work_at_once_waits_for_earlier_work_after_the_sink_is_closed() -> None:
    go, done, afterwards = threading.Event(), list[int](), Afterwards("sink 'out'")

    def work(number: int) -> None:
        assert go.wait(60)
        done.append(number)

    for number in range(3):
        afterwards.do(partial(work, number))
    afterwards.close()
    last = threading.Thread(target=lambda: afterwards.do(lambda: done.append(99), at_once=True))
    last.start()
    last.join(0.2)  # a wrong order would show now
    go.set()
    last.join()
    assert done == [0, 1, 2, 99]


def test_work_that_fails_is_logged_and_leaves_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    done, afterwards = threading.Event(), Afterwards("sink 'out'")

    def fails() -> None:
        raise Unavailable("the store is away")

    with caplog.at_level(logging.WARNING, "barrier_runtime.sinks"):
        afterwards.do(fails)
        afterwards.do(done.set)
        assert done.wait(60)
    assert "sink 'out': work behind a commit is left for the next start: the store is away" in caplog.text
    afterwards.close()


@pytest.mark.slow
def test_files_of_a_delta_table_leave_nothing_staged_when_they_are_committed(s3_url: Callable[[str], str]) -> None:
    url = s3_url("table")
    sink = DeltaSink(url)
    sink.open(SinkContext("job", "out", 1, 0, 1, open_store, JOB_STORE, "lineage"))
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.record_batch({"n": [1]}))
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    assert len(in_staging(url)) == 1
    sink.commit(committable)
    until(lambda: in_staging(url) == [])  # after the commit
    sink.close()
