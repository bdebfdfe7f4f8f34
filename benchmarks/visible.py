"""Time at which a reader of committed rows could see each row of a topic.

While an engine runs, the watcher asks every few milliseconds for the end of committed rows (the last stable offset),
which costs the broker almost nothing. Afterwards the program reads the topic once; each row gets the time of the first
answer whose end was past the row. So no reader needs processor time for 100,000 rows per second beside the measured
engine.
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.stamps import Stamps

_PERIOD_S = 0.008
_READ_S = 240.0

Ends = Sequence[tuple[int, int]]


class _Row(msgspec.Struct):
    emitted: int


def emitted_in_value(message: Any) -> int:
    """Intended emission (ns) in a JSON value."""
    return msgspec.json.decode(message.value(), type=_Row).emitted


def emitted_in_key(message: Any) -> int:
    """Intended emission (ns) in the key of a record of the real-time workloads."""
    return int(message.key())


def seen_at(offsets: npt.NDArray[np.int64], ends: Ends) -> npt.NDArray[np.int64]:
    """Time of the first of `ends` (time ns, end offset; in order of time) past each offset; -1 if none is."""
    times = np.array([time_ns for time_ns, _ in ends] + [-1], np.int64)
    passed = np.maximum.accumulate(np.array([end for _, end in ends], np.int64))
    return times[np.searchsorted(passed, offsets, side="right")]


def _in_order(intended: npt.NDArray[np.int64], arrived: npt.NDArray[np.int64]) -> Stamps:
    order = np.argsort(arrived, kind="stable")
    return Stamps(intended[order], arrived[order])


class Watcher:
    """Records the ends of `topic`'s partitions while the block runs."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, emitted: Callable[[Any], int] = emitted_in_value
    ) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._emitted = emitted
        self._consumer = Consumer(self._settings)
        self._partitions = [TopicPartition(topic, number, 0) for number in range(partitions)]
        self._ends: dict[int, list[tuple[int, int]]] = {number: [] for number in range(partitions)}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="visible", daemon=True)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def rows(self) -> int:
        """Visible rows until now, with markers of transactions."""
        return sum(ends[-1][1] for ends in self._ends.values() if ends)

    def stamps(self) -> Stamps:
        """(Intended, visible) of every row that became visible. Call after the block."""
        return self.both()[0]

    def both(self, since_ns: int = 0) -> tuple[Stamps, Stamps]:
        """(Intended, visible) and (intended, appended) of the rows that became visible from `since_ns` on.

        *Appended* is the record's timestamp, which needs a topic with LogAppendTime. Call after the block, once."""
        none = np.empty((0, 3), np.int64)
        found = [none]
        for part, rows in self._read(since_ns).items():
            read = np.array(rows, np.int64).reshape(-1, 3)
            read[:, 0] = seen_at(read[:, 0], self._ends[part])
            found.append(read[read[:, 0] >= 0])
        visible, intended, appended = np.concatenate(found).T
        return _in_order(intended, visible), _in_order(intended, appended)

    def _watch(self) -> None:
        while not self._ended.is_set():
            for part in self._partitions:
                _, end = self._consumer.get_watermark_offsets(part, timeout=5, cached=False)
                noted = self._ends[part.partition]
                if not noted or end > noted[-1][1]:
                    noted.append((time.time_ns(), end))
            time.sleep(_PERIOD_S)

    def _read(self, since_ns: int) -> dict[int, list[tuple[int, int, int]]]:
        """Partition -> (offset, intended emission, timestamp in ns) of the rows below the last recorded end."""
        for part in self._partitions:
            earlier = [end for at_ns, end in self._ends[part.partition] if at_ns < since_ns]
            part.offset = max(0, *earlier) if earlier else 0
        found: dict[int, list[tuple[int, int, int]]] = {part.partition: [] for part in self._partitions}
        until = {number: ends[-1][1] for number, ends in self._ends.items() if ends and ends[-1][1] > 0}
        self._consumer.assign([part for part in self._partitions if part.partition in until])
        deadline = time.monotonic() + _READ_S
        open_parts = set(until)
        while open_parts and time.monotonic() < deadline:
            for message in self._consumer.consume(10_000, timeout=0.2):
                if message.error() is None and message.offset() < until[message.partition()]:
                    stamp_ns = message.timestamp()[1] * 1_000_000
                    found[message.partition()].append((message.offset(), self._emitted(message), stamp_ns))
            at = {part.partition: part.offset for part in self._consumer.position(list(self._partitions))}
            open_parts = {number for number in open_parts if at.get(number, 0) < until[number]}
        self._consumer.close()
        if open_parts:
            raise TimeoutError(
                f"the topic could not be read to its end within {_READ_S:.0f} s: partitions {open_parts}"
            )
        return found
