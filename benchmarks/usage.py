"""CPU time and memory of a process and everything below it, sampled by a thread.

Processes come and go (Spark's workers): what a process had used when it was last seen stays in the sum.
"""

import threading
import time
from types import TracebackType

import psutil

_PERIOD_S = 0.5  # a look takes some milliseconds, on the cores that are measured


class Usage:
    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._lock = threading.Lock()
        self._cpu_s: dict[tuple[int, float], float] = {}
        self._samples: list[tuple[int, float, float]] = []  # (time ns, CPU seconds so far, MB now)
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
        """CPU seconds of the tree in that time, from the samples nearest to its ends."""
        with self._lock:
            samples = list(self._samples)
        return _nearest(samples, last_ns)[1] - _nearest(samples, first_ns)[1]

    def peak_mb(self) -> float:
        """Resident, summed over the tree; pages that processes share count in each (our slots are forked)."""
        with self._lock:
            return max(sample[2] for sample in self._samples)

    def look(self) -> None:
        """Take a sample now."""
        rss = 0
        with self._lock:
            for process in self._tree():
                try:
                    with process.oneshot():
                        times = process.cpu_times()
                        self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                        rss += process.memory_info().rss
                except psutil.Error:  # it has ended meanwhile
                    continue
            self._samples.append((time.time_ns(), sum(self._cpu_s.values()), rss / 1e6))

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _sample(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self.look()


def _nearest(samples: list[tuple[int, float, float]], at_ns: int) -> tuple[int, float, float]:
    return min(samples, key=lambda sample: abs(sample[0] - at_ns))
