"""`python -m tests.hdfs_by_hand hdfs://host:port`: files of an HDFS as sources, through pyarrow and libhdfs, which no
public registry has built. Not part of `make test`.

Files of every kind are read from a new folder there, watched, and read by a job that is killed twice and goes on.

On 26 November 2026 this passed on a MiniDFSCluster of `org.apache.hadoop:hadoop-client-minicluster:3.4.2`, with libhdfs
3.3, whose source is in the crate `hdfs-sys` 0.3.1. In the crate's folder `libhdfs`: `gcc -shared -fPIC -fcommon
-I$JAVA_HOME/include -I$JAVA_HOME/include/linux -Ilibhdfs -Ihdfs_3_3 -Ihdfs_3_3/include -Ihdfs_3_3/os/posix
hdfs_3_3/*.c hdfs_3_3/os/posix/*.c -L$JAVA_HOME/lib/server -ljvm -o libhdfs.so`. On the CLASSPATH: `hadoop-client-api`,
`hadoop-client-runtime`, log4j and `commons-lang3`, without which libhdfs crashes at the first error.
"""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, JsonlSink
from barrier_runtime.connectors.files.source.listing import find_arrivals, find_files, open_file

ROWS = 20_000


class Hdfs:
    def __init__(self, url: str) -> None:
        self.files, folder = pafs.FileSystem.from_uri(f"{url}/barrier-{uuid.uuid4().hex[:8]}")
        self.folder = folder
        self.url = url + folder

    def put(self, key: str, content: bytes) -> None:
        self.files.create_dir(f"{self.folder}/{key}".rpartition("/")[0])
        with self.files.open_output_stream(f"{self.folder}/{key}") as file:
            file.write(content)


def parquet(table: pa.Table) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, row_group_size=300)
    return bytes(buffer.getvalue())


def all_kinds_are_read(hdfs: Hdfs) -> None:
    for number in range(3):
        rows = parquet(pa.table({"n": range(number * 1_000, number * 1_000 + 1_000)}))
        hdfs.put(f"in/day=2026-01-0{number + 1}/part.parquet", rows)
    hdfs.put("in/_hidden.parquet", b"not one")
    hdfs.put("text/a.csv", b"n;m\n1;2\n3;4\n")
    hdfs.put("text/b.txt", b"one\ntwo")
    hdfs.put("lines/c.jsonl", b'{"n": 5}\n{"n": 6}\n')
    outs = [CollectSink() for _ in range(5)]
    flow = Dataflow("hdfs")
    flow.read_parquet("parquet", f"{hdfs.url}/in").sink("parquet-out", outs[0])
    flow.read_csv("csv", f"{hdfs.url}/text/a.csv", delimiter=";").sink("csv-out", outs[1])
    flow.read_text("text", f"{hdfs.url}/text/*.txt").sink("text-out", outs[2])
    flow.read_binary("whole", f"{hdfs.url}/text").sink("whole-out", outs[3])
    flow.read_jsonl("lines", f"{hdfs.url}/lines", schema={"n": int}).sink("lines-out", outs[4])
    flow.run_local(parallelism=2)
    found, values, lines, whole, records = (out.rows() for out in outs)
    assert sorted(row["n"] for row in found) == list(range(3_000))
    assert {row["day"].day for row in found} == {1, 2, 3}
    assert values == [{"n": 1, "m": 2}, {"n": 3, "m": 4}]
    assert [row["line"] for row in lines] == ["one", "two"]
    assert {row["path"].rpartition("/")[2] for row in whole} == {"a.csv", "b.txt"}
    assert all(row["path"].startswith("hdfs://") for row in whole)
    assert [row["n"] for row in records] == [5, 6]


def any_range_can_be_read(hdfs: Hdfs) -> None:
    content = bytes(range(256)) * 20_000
    hdfs.put("large/large.bin", content)
    (file,) = find_files(f"{hdfs.url}/large/large.bin", ("",), "by hand")
    opened = open_file(file, "by hand")
    for offset, length in ((0, 10), (len(content) - 5, 100), (3_000_000, 2_000_000), (7, 1), (len(content), 1)):
        assert opened.read_at(length, offset) == content[offset : offset + length]
    opened.close()


def what_is_gone_or_longer_is_told(hdfs: Hdfs) -> None:
    hdfs.put("change/gone.txt", b"x")
    hdfs.put("change/longer.txt", b"x")
    gone, longer = find_arrivals(f"{hdfs.url}/change", (".txt",), "by hand")
    hdfs.files.delete_file(f"{hdfs.folder}/change/gone.txt")
    hdfs.put("change/longer.txt", b"xy")
    for file, told in ((gone, "is not there any more: bring it back"), (longer, "had 1 bytes when the job started")):
        with pytest.raises(InvalidJob, match=told):
            open_file(file, "by hand")


def watched(url: str) -> Dataflow:
    flow = Dataflow("watched")
    rows = flow.read_jsonl("in", f"{url}/watched", schema={"n": int}, watch=timedelta(milliseconds=200))
    rows.sink("out", JsonlSink("out"))
    return flow


def rows_of(folder: Path) -> list[int]:
    lines = [line for path in folder.glob("out/*.jsonl") for line in path.read_text().splitlines()]
    return sorted(int(line.partition(":")[2].rstrip("} ")) for line in lines)


def a_job_goes_on_through_kills(hdfs: Hdfs) -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)

        def job() -> Any:
            command = [sys.executable, "-m", "tests.hdfs_by_hand", "--watch", hdfs.url]
            here = {**os.environ, "PYTHONPATH": os.getcwd()}
            return subprocess.Popen(command, cwd=folder, env=here)

        for part in range(3):
            lines = "".join(f'{{"n": {n}}}\n' for n in range(part * ROWS, (part + 1) * ROWS))
            hdfs.put(f"watched/{part}.jsonl", lines.encode())
            running = job()
            try:
                while len(rows_of(folder)) < (part + 1) * ROWS:
                    assert running.poll() is None, "the job ended"
                    os.sched_yield()
                    signal.sigtimedwait([], 0.5)
            finally:
                running.kill()
                running.wait()
        assert rows_of(folder) == list(range(3 * ROWS))


def main() -> None:
    if sys.argv[1] == "--watch":
        watched(sys.argv[2]).run_local(parallelism=2, checkpoints="checkpoints", checkpoint_interval=0.2)
        return
    hdfs = Hdfs(sys.argv[1])
    for check in (
        all_kinds_are_read,
        any_range_can_be_read,
        what_is_gone_or_longer_is_told,
        a_job_goes_on_through_kills,
    ):
        check(hdfs)
        print(f"{check.__name__.replace('_', ' ')}: yes", flush=True)
    hdfs.files.delete_dir(hdfs.folder)


if __name__ == "__main__":
    main()
