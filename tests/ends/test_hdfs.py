"""HDFS through the REST interface: the contract of stores, and files as sources, tested as on other stores; the
peculiarities of HDFS; and a whole job through kills of the program and of the name node.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from barrier_runtime import compact_files
from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.connectors.files.sink.commit_record import live_files
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, folders_in
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.webhdfs import TEMPORARY, WebHdfsStore
from examples.servers import HdfsServer
from tests.barrier_runtime.connectors.files.test_cloud_files import (
    container,  # noqa: F401
    test_parquet_csv_lines_and_whole_files_are_read,  # noqa: F401
)
from tests.cloud_emulators import Cloud
from tests.state.store.test_object_stores import (
    test_a_list_holds_every_key_with_the_prefix_and_no_other,  # noqa: F401
    test_an_absent_object_is_a_named_outcome,  # noqa: F401
    test_an_object_is_copied_from_another_store_whole,  # noqa: F401
    test_deleted_objects_are_gone_and_the_others_stay,  # noqa: F401
    test_files_travel_both_ways_and_never_onto_an_existing_file,  # noqa: F401
    test_folders_are_named_once_and_nothing_else,  # noqa: F401
    test_no_operation_takes_an_unsafe_key,  # noqa: F401
    test_of_many_writers_of_one_key_exactly_one_is_told_that_it_landed,  # noqa: F401
    test_only_the_first_put_if_absent_lands,  # noqa: F401
    test_publish_makes_the_staged_object_visible_once_however_often_it_is_called,  # noqa: F401
    test_publish_never_replaces_other_content,  # noqa: F401
    test_publish_of_what_is_nowhere_names_both_objects,  # noqa: F401
    test_the_probe_finds_that_clouds_create_exclusively,  # noqa: F401
    test_the_url_of_a_store_opens_the_same_objects_and_carries_no_secret,  # noqa: F401
    test_what_was_put_can_be_read_whole_and_in_parts,  # noqa: F401
)


@pytest.fixture
def hdfs_url(hdfs: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    monkeypatch.setenv("HADOOP_USER_NAME", "root")
    if not hdfs.running:  # a test stopped the server, and failed before the restart
        hdfs.start()
    return hdfs.new_url


@pytest.fixture
def any_store(hdfs_url: Callable[[], str]) -> ObjectStore:
    return open_store(hdfs_url())


@pytest.fixture
def cloud(hdfs: HdfsServer, hdfs_url: Callable[[], str]) -> Cloud:
    return Cloud(hdfs, hdfs_url)


def test_what_is_numbered_is_in_folders_that_no_caller_sees(hdfs_url: Callable[[], str]) -> None:
    """HDFS takes a million names in a folder, and a log has a name per checkpoint."""
    store = WebHdfsStore(*place_of(hdfs_url()))
    keys = [f"log/{number:020d}.json" for number in (1, 99_999, 100_000, 12_345_678)]
    for key in keys:
        assert store.put_if_absent(key, key.encode()) is PutOutcome.CREATED
    store.put("log/summaries/1", b"x")
    assert [info.key for info in store.list("log/")] == [*keys, "log/summaries/1"]
    assert [info.key for info in store.list("log/000000000000")] == keys
    assert [info.key for info in store.list("log/00000000000000100")] == keys[2:3]
    assert store.get(keys[2]) == keys[2].encode()
    assert folders_in(store, "log/") == ["summaries"]
    assert sorted(each["pathSuffix"] for each in store._children(f"{store._root}/log")) == [
        *("000000000000000~", "000000000000001~", "000000000000123~", "summaries")
    ]
    store.delete([*keys, "log/summaries/1"])
    assert [each["pathSuffix"] for each in store._children(store._root)] == [TEMPORARY]  # empty folders go


def test_no_temporary_file_stays_but_that_of_a_writer_who_died_and_that_for_a_day(hdfs_url: Callable[[], str]) -> None:
    url = hdfs_url()
    store = WebHdfsStore(*place_of(url))
    folder = f"{store._root}/{TEMPORARY}"
    store.put("a", b"1")
    store.put("a", b"2")
    assert [store.put_if_absent(key, b"3") for key in ("a", "b")] == [PutOutcome.EXISTS, PutOutcome.CREATED]
    assert list(store._children(folder)) == []
    old, new = store._upload(b"half", 4), store._upload(b"half", 4)
    yesterday = int((time.time() - 25 * 3_600) * 1_000)
    store._ask("PUT", "SETTIMES", old, modificationtime=str(yesterday))
    WebHdfsStore(*place_of(url)).put("c", b"4")  # as a process that starts
    assert [f"{folder}/{each['pathSuffix']}" for each in store._children(folder)] == [new]
    assert [info.key for info in store.list("")] == ["a", "b", "c"]


def test_names_of_hive_folders_are_kept_as_they_are(hdfs_url: Callable[[], str]) -> None:
    store = open_store(hdfs_url())
    key = "at=2026-01-01 10%3A00/ü+b c.json"
    store.put(key, b"x")
    assert [info.key for info in store.list("at=")] == [key]
    assert store.get(key) == b"x"
    with pytest.raises(InvalidJob, match="HDFS takes no such name"):
        store.put("a:b", b"x")


def test_who_may_not_write_there_is_named(hdfs_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(url := hdfs_url()).put("a", b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody")
    store = open_store(url)
    with pytest.raises(InvalidJob, match=r"Permission denied: user=nobody.*set HADOOP_USER_NAME"):
        store.put_if_absent("b", b"x")
    assert store.get("a") == b"x"


_PROGRAM = """
import pathlib, sys, time
from barrier_runtime import Dataflow, JsonlSink, count

def numbers(index, of):
    for n in range(900):
        while n in (300, 600) and not pathlib.Path(sys.argv[3], f"after-{n}").exists():
            time.sleep(0.01)
        yield {"key": n % 3}

flow = Dataflow("hdfs")
rows = flow.from_iterator("numbers", numbers, schema={"key": int}, splits=1)
rows.key_by("key").aggregate("counts", n=count()).sink("out", JsonlSink(sys.argv[2]))
flow.run_local(
    parallelism=1, checkpoints=sys.argv[1], checkpoint_interval=0.2,
    restart="fixed_delay", restart_attempts=None, restart_delay=0.2,
)
"""


def test_a_job_goes_on_through_kills_of_its_program_and_of_the_name_node(
    hdfs: HdfsServer, hdfs_url: Callable[[], str], tmp_path: Path
) -> None:
    """Checkpoints and files are on HDFS. Each row appears once, and counts continue from the state; the same holds
    after small files have been compacted into a large file.
    """
    checkpoints, target = hdfs_url(), hdfs_url()
    store, command = open_store(target), [sys.executable, "-c", _PROGRAM, checkpoints, target, str(tmp_path)]

    def rows() -> list[tuple[int, int]]:
        files = live_files(read_commit_log(store, "hdfs", "out"))
        found = [json.loads(line) for file in files for line in store.get(file.name).splitlines()]
        return sorted((row["key"], row["n"]) for row in found)

    def until(records: int, job: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 120
        while len(read_commit_log(store, "hdfs", "out")) < records:
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    job = subprocess.Popen(command)
    try:
        until(1, job)
        job.kill()
        job.wait()
        (tmp_path / "after-300").touch()
        job = subprocess.Popen(command)
        until(len(read_commit_log(store, "hdfs", "out")) + 1, job)
        hdfs.kill()
        (tmp_path / "after-600").touch()
        time.sleep(0.5)  # a request or more fails
        hdfs.start()
        assert job.wait(300) == 0
    finally:
        job.kill()
        job.wait()
    expected = [(key, n) for key in range(3) for n in range(1, 301)]
    assert rows() == expected
    compact_files(target, keep_s=0)
    assert rows() == expected
    assert len(live_files(read_commit_log(store, "hdfs", "out"))) == 1


def place_of(url: str) -> tuple[str, str]:
    nodes, _, prefix = url.removeprefix("webhdfs://").partition("/")
    return nodes, prefix
