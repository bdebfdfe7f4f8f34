"""Parts shared by the integration tests: a job with a known right answer, faults at exact points, an output check.

The job numbers rows 0…n-1, counts them per key with a running aggregate behind a shuffle, and writes every row once
with the count. The output is right if every number occurs exactly once, and per key the counts are 1, 2, 3, … in the
order of the files.
"""

import datetime
import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.memory.rate import GeneratedRows, RateReader, RateSource
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.operators.aggregation.functions import count, max_
from barrier_runtime.operators.windows.assigners import Tumbling

_DAY_NS = 86_400 * 10**9


def enough(out: Path | str) -> None:
    """Ends the strikes: makes all remaining rows of the `numbers` of this output due at once.

    A job has to outlast all strikes, even on a machine where the strikes take a minute; without this call the test
    would wait for the remaining rows.
    """
    Path(_mark(out)).touch()


def is_enough(out: Path | str) -> bool:
    return os.path.exists(_mark(out))


def _mark(out: Path | str) -> str:
    return f"{out}.enough"


@dataclass(frozen=True)
class NumbersUntilEnough(RateSource):
    out: str = ""

    def named(self, name: str) -> "RowsUntilEnough":
        rows = RowsUntilEnough(name, self.rows_per_second, self.rows, self.keys, self.splits)
        rows.mark = _mark(self.out)
        return rows


class RowsUntilEnough(GeneratedRows):
    mark: str

    def reader(self, split: Split) -> "ReaderUntilEnough":
        paced = super().reader(split)
        assert isinstance(paced, RateReader)
        return ReaderUntilEnough(paced, self.mark)


class ReaderUntilEnough:
    def __init__(self, paced: RateReader, mark: str) -> None:
        self._paced = paced
        self._mark = mark
        self._begun = False
        self._enough = False
        self.position = paced.position
        self.seek = paced.seek
        self.close = paced.close

    @property
    def finished(self) -> bool:
        return self._paced.finished

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self._enough = self._enough or (self._begun and os.path.exists(self._mark))
        self._begun = True  # the schedule starts with the first poll, by the real time
        polled = self._paced.poll(max_rows, now_ns + _DAY_NS if self._enough else now_ns)
        return None if polled is None else Polled(polled.rows, min(polled.emit_ns, now_ns))

    def next_due_ns(self) -> int | None:
        return None if self._enough else self._paced.next_due_ns()


def counting_flow(
    name: str,
    out: Path | str,
    rows: int,
    rate: float,
    keys: int = 200,
    sink: JsonlSink | None = None,
    operator: str = "count",
    clocked: Path | None = None,
) -> Dataflow:
    """`clocked`: another output, the rows per key and tenth of a second by the wall clock."""
    flow = Dataflow(name)
    numbers = flow.source("numbers", NumbersUntilEnough(rate, rows, keys=keys, out=str(out)))
    numbers.key_by("key").aggregate(operator, n=count()).sink("out", sink or JsonlSink(str(out)))
    if clocked is not None:
        tenths = Tumbling(datetime.timedelta(seconds=0.1))
        windows = numbers.key_by("key").window("tenths", tenths, clock="processing")
        windows.aggregate(n=count()).sink("clocked", JsonlSink(str(clocked)))
    return flow


def noisy_flow(name: str, out: Path | str, rate: float, keys: int) -> Dataflow:
    """A `counting_flow` without an end, and with an incompressible number for each key: state that is stored in
    files, and not in manifests.
    """
    flow = Dataflow(name)
    numbers = flow.source("numbers", RateSource(rate, keys=keys, splits=1))
    numbers.map(_with_noise).key_by("key").aggregate("count", n=count(), most=max_("noise")).sink(
        "out", JsonlSink(str(out))
    )
    return flow


def _with_noise(row: dict[str, int]) -> dict[str, int]:
    return {**row, "noise": row["value"] * 0x9E3779B97F4A7C15 % (1 << 63)}


@dataclass(frozen=True)
class Verdict:
    rows: int
    lost: int
    duplicated: int
    out_of_order: int

    @property
    def right(self) -> bool:
        return self.lost == self.duplicated == self.out_of_order == 0


def verdict(out: Path, rows: int | None = None) -> Verdict:
    """Compares the visible output with the truth. `rows`: None after a stop, when all rows up to the last visible row
    have to exist.
    """
    seen: list[int] = []
    reached: dict[int, int] = {}
    out_of_order = 0
    for file in sorted(visible_files(out)):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            seen.append(row["value"])
            out_of_order += row["n"] != reached.get(row["key"], 0) + 1
            reached[row["key"]] = row["n"]
    distinct = set(seen)
    upto = max(seen, default=-1) + 1 if rows is None else rows
    return Verdict(len(seen), len(set(range(upto)) - distinct), len(seen) - len(distinct), out_of_order)


def check_clocked(out: Path, rows: int, keys: int = 200) -> None:
    """Checks that each row counts in one window, and that no window is emitted twice."""
    told: Counter[tuple[int, str]] = Counter()
    counted: Counter[int] = Counter()
    for file in visible_files(out):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            told[row["key"], row["window_start"]] += 1
            counted[row["key"]] += row["n"]
    assert counted == Counter(number % keys for number in range(rows))
    assert set(told.values()) == {1}


def visible_files(out: Path) -> list[Path]:
    """The files a reader of the folder sees: all but those below a hidden (`_`, `.`) name."""
    return [
        Path(folder, name)
        for folder, _, names in os.walk(out)  # unlike rglob, os.walk tolerates folders that vanish meanwhile
        if not any(part.startswith(("_", ".")) for part in Path(folder).relative_to(out).parts)
        for name in names
        if name.endswith(".jsonl") and not name.startswith(("_", "."))
    ]


def kill(pid: int, signal_number: int = signal.SIGKILL) -> None:
    os.kill(pid, signal_number)


def gone(process: psutil.Process) -> bool:
    """Whether the process has ended, even if another process has its id by now."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass(frozen=True)
class Fault:
    """Kills `victim` (SIGKILL) once at each point that a test orders, from within the sink of the slot that reaches the
    point first. Points are "sync", "async", "before commit" and "after commit".
    """

    victim: str  # "slot" or "coordinator"
    folder: str  # the folder's files record the ordered points, and the points that happened
    from_checkpoint: int = 3

    def order(self, point: str, coordinator_pid: int) -> None:
        draft = self._file(point, "draft")
        draft.write_text(str(coordinator_pid))
        draft.rename(self._file(point, "ordered"))

    def happened(self, point: str) -> bool:
        return self._file(point, "happened").exists()

    def strike(self, point: str) -> None:
        """Kills the victim if the test has ordered this point, the first time only."""
        if not self._file(point, "ordered").exists():
            return
        try:
            self._file(point, "happened").touch(exist_ok=False)
        except FileExistsError:
            return
        pid = os.getpid() if self.victim == "slot" else int(self._file(point, "ordered").read_text())
        os.kill(pid, signal.SIGKILL)

    def _file(self, point: str, what: str) -> Path:
        return Path(self.folder, f"{point} {what}")


class FaultySink(JsonlSink):
    """The production sink, with a fault at a chosen point."""

    def __init__(self, url: str, fault: Fault) -> None:
        super().__init__(url)
        self.fault = fault
        self._begun = 0

    def begin_transaction(self):
        self._begun += 1  # called in the synchronous part of every snapshot
        if self._begun > self.fault.from_checkpoint:
            self.fault.strike("sync")
        return super().begin_transaction()

    def pre_commit(self, transaction, checkpoint):
        if checkpoint >= self.fault.from_checkpoint:
            self.fault.strike("async")
        return super().pre_commit(transaction, checkpoint)

    def commit(self, committable):
        if self._begun > self.fault.from_checkpoint:
            self.fault.strike("before commit")
        super().commit(committable)
        if self._begun > self.fault.from_checkpoint:
            self.fault.strike("after commit")
