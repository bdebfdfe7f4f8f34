"""Processor time and memory of a process and all processes below it, sampled by a thread.

Every process that was ever seen below the root counts until the process ends, even if the parent has ended and the
system has given the process another parent. Processes come and go (Spark's workers): the last seen usage of a process
stays in the sum; usage after that, at most of half a second, is not counted. Pure except for `Usage`: `parsed` and
`Tally` take the text of /proc/<pid>/stat and the processes of a sample as data.
"""

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

_PERIOD_S = 0.5  # a look takes some milliseconds on the measured cores
_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """A process at a moment. `began` distinguishes the process from a later process with the same pid."""

    pid: int
    parent: int
    began: float
    cpu_s: float  # user and system, of all threads
    rss_bytes: int


def parsed(stat: str) -> Process:
    """Parses the text of /proc/<pid>/stat (proc(5)); a command's name may contain blanks and parentheses."""
    pid, _, rest = stat.partition(" (")
    fields = rest[rest.rindex(")") + 1 :].split()
    return Process(
        pid=int(pid),
        parent=int(fields[1]),
        began=float(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


class Tally:
    """Sums over the tree of `root`, sample by sample."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._cpu_s: dict[tuple[int, float], float] = {}  # of every process that was ever in the tree
        self._at_ns: list[int] = []
        self._cpu_sums_s: list[float] = []
        self._rss_bytes: list[int] = []

    def add(self, at_ns: int, processes: Iterable[Process]) -> None:
        """Adds a sample: all processes of the machine at that time, with those of others."""
        found = self._tree({process.pid: process for process in processes})
        self._cpu_s.update({(process.pid, process.began): process.cpu_s for process in found})
        self._at_ns.append(at_ns)
        self._cpu_sums_s.append(sum(self._cpu_s.values()))
        self._rss_bytes.append(sum(process.rss_bytes for process in found))

    def cpu_between(self, first_ns: int, last_ns: int) -> float:
        """CPU seconds in that time, interpolated between samples."""
        base = self._at_ns[0]  # a float has no room for nanoseconds since the epoch
        at_s = [(at_ns - base) / 1e9 for at_ns in self._at_ns]
        first, last = np.interp([(first_ns - base) / 1e9, (last_ns - base) / 1e9], at_s, self._cpu_sums_s)
        return float(last - first)

    def peak_bytes(self) -> int:
        return max(self._rss_bytes)

    def _tree(self, living: dict[int, Process]) -> list[Process]:
        children: dict[int, list[int]] = {}
        for process in living.values():
            children.setdefault(process.parent, []).append(process.pid)
        known = [pid for pid, began in self._cpu_s if pid in living and living[pid].began == began]
        todo, found = [self._root, *known], dict[int, Process]()
        while todo:
            pid = todo.pop()
            if pid in living and pid not in found:
                found[pid] = living[pid]
                todo.extend(children.get(pid, []))
        return list(found.values())


class Usage:
    """`with Usage(pid) as usage: …` samples twice a second."""

    def __init__(self, pid: int) -> None:
        self._lock = threading.Lock()
        self._tally = Tally(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="usage", daemon=True)

    def __enter__(self) -> "Usage":
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_between(self, first_ns: int, last_ns: int) -> float:
        """CPU seconds of the tree in that time."""
        with self._lock:
            return self._tally.cpu_between(first_ns, last_ns)

    def peak_mb(self) -> float:
        """Resident, summed over the tree; shared pages count in each process (our slots are forked)."""
        with self._lock:
            return self._tally.peak_bytes() / 1e6

    def look(self) -> None:
        """Takes a sample now."""
        with self._lock:
            self._tally.add(time.time_ns(), _by_proc() if _PROC.joinpath("self/stat").exists() else _by_psutil())

    def _sample(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self.look()


def _by_proc() -> list[Process]:
    found = []
    for name in os.listdir(_PROC):
        if name.isdigit():
            try:
                found.append(parsed((_PROC / name / "stat").read_text(errors="replace")))
            except (FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
                continue
    return found


def _by_psutil() -> list[Process]:
    """Processes without /proc (macOS)."""
    import psutil

    return [
        Process(
            pid=seen.info["pid"],
            parent=seen.info["ppid"],
            began=seen.info["create_time"],
            cpu_s=seen.info["cpu_times"].user + seen.info["cpu_times"].system,
            rss_bytes=seen.info["memory_info"].rss,
        )
        for seen in psutil.process_iter(["pid", "ppid", "create_time", "cpu_times", "memory_info"])
        if seen.info["cpu_times"] is not None and seen.info["memory_info"] is not None
    ]
