"""Cost of an idle job: processor time and wake-ups of each process and thread.

    python -m benchmarks.idle                     a source that knows that nothing is due
    python -m benchmarks.idle --source folder     a source that watches an empty folder
    python -m benchmarks.idle --source kafka      a source that reads an empty topic

The job keeps a count per key in RocksDB and takes a checkpoint every second. Figures are shares of a core over
`--seconds`, from /proc/<pid>/task/<tid>/schedstat and status (Linux). Other load on the machine changes processor time
much less than wall-clock time, so runs before and after a change can be compared in pairs.
"""

import argparse
import contextlib
import datetime
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime import Dataflow, ParquetSink, count
from barrier_runtime.api.stream import Stream
from barrier_runtime.connectors.source import Polled, Split
from benchmarks import events
from benchmarks.broker import broker

_PROC = Path("/proc")
_HOUR_NS = 3_600_000_000_000
_SOURCES = ("nothing", "folder", "kafka")
_WATCH = datetime.timedelta(seconds=1)
_SHOWN = 0.0004  # threads that use less of a core are not listed


class NothingDue:
    """A split per subtask; the next row is always due in an hour."""

    exactly_once = True
    schema = events.SCHEMA

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(str(index)) for index in range(parallelism)]

    def reader(self, split: Split) -> "NothingDueReader":
        return NothingDueReader()


class NothingDueReader:
    finished = False

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        return None

    def next_due_ns(self) -> int | None:
        return time.time_ns() + _HOUR_NS

    def position(self) -> bytes:
        return b"{}"

    def seek(self, position: bytes) -> None:
        """Does nothing: the only position is the first."""

    def close(self) -> None:
        """Does nothing: nothing is open."""


@dataclass(frozen=True)
class Thread:
    """A thread at a moment."""

    process: int
    name: str
    cpu_s: float
    woken: int  # voluntary switches: each is a rest that something ended


def threads_of(pid: int) -> dict[int, Thread]:
    """Threads by id; empty for an ended process."""
    found = {}
    with contextlib.suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                cpu_ns = int((task / "schedstat").read_text().split()[0])
                status = (task / "status").read_text()
                woken = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
                name = (task / "comm").read_text().strip()
                found[int(task.name)] = Thread(pid, name, cpu_ns / 1e9, woken)
    return found


def below(root: int) -> list[int]:
    """`root` and all processes below it."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                rest = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(rest[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, []))
    return found


def role(pid: int, root: int, slots: Sequence[int], coordinator: int | None) -> str:
    if pid in slots:
        return f"slot {slots.index(pid)}"
    if pid == coordinator:
        return "coordinator"
    if pid == root:
        return "driver"
    with contextlib.suppress(OSError):
        command = (_PROC / str(pid) / "cmdline").read_bytes()
        if b"java" in command.split(b"\0")[0]:
            return "JVM"
        if b"worker_daemon" in command:
            return "worker daemon"
    return "other"


@contextlib.contextmanager
def _stream(source: str, flow: Dataflow, folder: Path) -> Iterator[Stream]:
    if source == "nothing":
        yield flow.source("events", NothingDue(), event_time="at")
    elif source == "folder":
        watched = folder / "watched"
        watched.mkdir()
        yield flow.read_parquet("events", str(watched / "*.parquet"), schema=events.SCHEMA, watch=_WATCH)
    else:
        from confluent_kafka.admin import AdminClient, NewTopic

        with broker() as server:
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            admin.create_topics([NewTopic("events", num_partitions=2)])["events"].result(30)
            yield flow.read_kafka(
                "events", server.bootstrap, "events", group="idle", key=None, value="json", schema=events.SCHEMA
            )


def measure(source: str, warm_up_s: float, seconds: float, interval_s: float) -> None:
    folder = Path(tempfile.mkdtemp(prefix="barrier-idle-"))
    try:
        flow = Dataflow("idle")
        with _stream(source, flow, folder) as stream:
            counted = stream.key_by("key").aggregate("count", n=count())
            counted.sink("out", ParquetSink(str(folder / "out")))
            with flow.start(
                master="local[2]",
                parallelism=2,
                checkpoints=str(folder / "checkpoints"),
                checkpoint_interval=interval_s,
            ) as handle:
                while (last := handle.status().checkpoints.last_completed) is None or last.checkpoint < 2:
                    time.sleep(0.1)
                time.sleep(warm_up_s)
                status = handle.status()
                slots = [slot.pid for slot in status.slots]
                pids = below(os.getpid())
                before = {tid: thread for pid in pids for tid, thread in threads_of(pid).items()}
                began = time.monotonic()
                time.sleep(seconds)
                took = time.monotonic() - began
                after = {tid: thread for pid in pids for tid, thread in threads_of(pid).items()}
                checkpoints = handle.status().checkpoints.completed - status.checkpoints.completed
                _tell(os.getpid(), slots, handle.coordinator_pid, before, after, took, checkpoints)
                handle.stop("now")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(
    root: int,
    slots: Sequence[int],
    coordinator: int | None,
    before: dict[int, Thread],
    after: dict[int, Thread],
    took: float,
    checkpoints: int,
) -> None:
    rows: dict[int, list[tuple[float, float, str]]] = {}
    for tid, thread in after.items():
        base = before.get(tid, Thread(thread.process, thread.name, 0.0, 0))
        share, woken = (thread.cpu_s - base.cpu_s) / took, (thread.woken - base.woken) / took
        rows.setdefault(thread.process, []).append((share, woken, f"{thread.name} ({tid})"))
    total = sum(share for threads in rows.values() for share, _, _ in threads)
    print(f"{checkpoints} checkpoints in {took:.1f} s; all processes: {total:.2%} of a core")
    for pid, threads in sorted(rows.items(), key=lambda row: -sum(share for share, _, _ in row[1])):
        share, woken = sum(row[0] for row in threads), sum(row[1] for row in threads)
        print(f"{share:7.2%}  {woken:7.1f}/s  {role(pid, root, slots, coordinator)}, {len(threads)} threads")
        for part, often, name in sorted(threads, reverse=True):
            if part >= _SHOWN:
                print(f"    {part:7.2%}  {often:7.1f}/s  {name}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--source", choices=_SOURCES, default="nothing")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds: the JVM compiles and collects at first")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    chosen = parser.parse_args(arguments)
    measure(chosen.source, chosen.warm_up, chosen.seconds, chosen.interval)


if __name__ == "__main__":
    main()
