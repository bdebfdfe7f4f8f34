"""Files of other clouds as sources, on emulators: listing, reading from any position, watching, and invalid URLs."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob
from barrier_runtime.connectors.files.source.listing import find_arrivals, find_files, open_file
from barrier_runtime.state.store.open import open_store
from tests.cloud_emulators import Cloud


@pytest.fixture
def container(cloud: Cloud) -> str:
    """URL of a folder in a new container."""
    return cloud.new_url()


def within(url: str, key: str) -> str:
    place, mark, query = url.partition("?")
    return f"{place}/{key}{mark}{query}"


@pytest.mark.slow
def test_parquet_csv_lines_and_whole_files_are_read(container: str) -> None:
    store = open_store(container)
    for number in range(3):
        buffer = io.BytesIO()
        pq.write_table(pa.table({"n": range(number * 1_000, number * 1_000 + 1_000)}), buffer, row_group_size=300)
        store.put(f"in/day=2026-01-0{number + 1}/part.parquet", buffer.getvalue())
    store.put("in/_hidden.parquet", b"not one")
    store.put("text/a.csv", b"n;m\n1;2\n3;4\n")
    store.put("text/b.txt", b"one\ntwo")
    found, lines, values, whole = (CollectSink() for _ in range(4))
    flow = Dataflow("clouds")
    flow.read_parquet("parquet", within(container, "in")).sink("parquet-out", found)
    flow.read_csv("csv", within(container, "text/a.csv"), delimiter=";").sink("csv-out", values)
    flow.read_text("text", within(container, "text/*.txt")).sink("text-out", lines)
    flow.read_binary("whole", within(container, "text")).sink("whole-out", whole)
    flow.run_local(parallelism=2)
    assert sorted(row["n"] for row in found.rows()) == list(range(3_000))
    assert {row["day"].day for row in found.rows()} == {1, 2, 3}
    assert values.rows() == [{"n": 1, "m": 2}, {"n": 3, "m": 4}]
    assert [row["line"] for row in lines.rows()] == ["one", "two"]
    assert {row["path"].rpartition("/")[2]: row["content"] for row in whole.rows()} == {
        "a.csv": b"n;m\n1;2\n3;4\n",
        "b.txt": b"one\ntwo",
    }
    assert all(row["path"].startswith(container.partition("://")[0]) for row in whole.rows())
    assert not any("?" in row["path"] for row in whole.rows())


@pytest.mark.slow
def test_any_range_of_a_file_can_be_read(container: str) -> None:
    content = bytes(range(256)) * 20_000
    open_store(container).put("large.bin", content)
    (file,) = find_files(within(container, "large.bin"), ("",), "a test")
    assert (file.id, file.size) == ("large.bin", len(content))
    opened = open_file(file, "a test")
    for offset, length in ((0, 10), (len(content) - 5, 100), (3_000_000, 2_000_000), (7, 1), (len(content), 1)):
        assert opened.read_at(length, offset) == content[offset : offset + length]
    opened.close()


@pytest.mark.slow
def test_missing_and_changed_files_are_named(container: str) -> None:
    store = open_store(container)
    for name in ("empty.txt", "gone.txt", "longer.txt", "other.txt"):
        store.put(name, b"x" if name != "empty.txt" else b"")
    listed = {file.id: file for file in find_arrivals(container, (".txt",), "a test")}
    store.delete(["gone.txt"])
    store.put("longer.txt", b"xy")
    store.put("other.txt", b"y")
    assert open_file(listed["empty.txt"], "a test").read() == b""
    store.put("empty.txt", b"x")
    with pytest.raises(InvalidJob, match="is not there any more: bring it back"):
        open_file(listed["gone.txt"], "a test").read()
    with pytest.raises(InvalidJob, match="had 1 bytes when the job started and has 2 now"):
        open_file(listed["longer.txt"], "a test").read()
    with pytest.raises(InvalidJob, match="had 0 bytes when the job started and has 1 now"):
        open_file(listed["empty.txt"], "a test")
    if listed["other.txt"].etag:
        with pytest.raises(
            InvalidJob, match=r"other\.txt\S* was replaced after it was listed, by another one of 1 byte"
        ):
            open_file(listed["other.txt"], "a test").read()
    assert open_file(listed["longer.txt"], "a test", grows=True).read() == b"x"
    assert find_arrivals(within(container, "nothing"), (".txt",), "a test") == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://name/in", "cannot read files from ftp://name/in: use a path, s3://bucket/key, gs://bucket/key"),
        ("hdfs://name/in", "needs Hadoop's libhdfs, a JVM and Hadoop's classes on every host"),
        ("hdfs://name/in?endpoint=http://x", "has unknown settings .*: none is known"),
        ("gs://bucket/in?region=x", "has unknown settings"),
        ("abfss://container@account.dfs.core.windows.net/in?endpoint=x", "must start with http"),
        ("s3://bucket/in?region=x", "has unknown settings"),
    ],
)
def test_what_is_no_url_of_files_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        Dataflow("clouds").read_csv("in", url)


def test_one_connection_to_an_hdfs_serves_all_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """libhdfs has one connection per process, and closes the connection for all files when any owner is dropped."""
    made: list[tuple[str, int]] = []

    def connected(host: str, port: int) -> pafs.FileSystem:
        made.append((host, port))
        return pafs.LocalFileSystem()

    monkeypatch.setattr(pafs, "HadoopFileSystem", connected)
    for _ in range(2):
        assert find_arrivals("hdfs://only-here:9000/nothing", ("",), "a test") == []
    assert made == [("only-here", 9000)]


def test_two_that_ask_an_hdfs_first_have_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of a slot open concurrently; dropping a second connection would close the files of the first."""
    made: list[object] = []
    both = threading.Event()

    def connect(host: str, port: int) -> pafs.FileSystem:
        made.append(host)
        if len(made) == 2:
            both.set()
        both.wait(0.2)  # time for a second connection
        return pafs.LocalFileSystem()

    monkeypatch.setattr(pafs, "HadoopFileSystem", connect)
    place = "hdfs://asked-by-two:9000/nothing"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: find_arrivals(place, ("",), "a test"), range(2)))
    assert made == ["asked-by-two"]


@pytest.mark.slow
def test_an_s3a_url_is_read_as_s3(tmp_path: Path, s3_url: object) -> None:
    """Spark writes such URLs."""
    url = s3_url("in")  # type: ignore[operator]
    open_store(url).put("a.csv", b"n\n1\n")
    out = CollectSink()
    flow = Dataflow("s3a")
    flow.read_csv("in", url.replace("s3://", "s3a://")).sink("out", out)
    flow.run_local(parallelism=1)
    assert out.rows() == [{"n": 1}]
