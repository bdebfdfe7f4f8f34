"""Time at which a reader of committed rows could see each row of a topic.

While an engine runs, the watcher asks every few milliseconds for the end of committed rows (the last stable offset),
which costs the broker almost nothing. Afterwards it reads the topic once; each row gets the time when the end had first
passed it. So no reader needs processor time for 100,000 rows per second beside the measured engine.
"""

import threading
import time
from collections.abc import Sequence
from types import TracebackType

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.stamps import Stamps

_PERIOD_S = 0.008
_READ_S = 60.0

Ends = Sequence[tuple[int, int]]


class _Row(msgspec.Struct):
    emitted: int


def seen_at(offsets: npt.NDArray[np.int64], ends: Ends) -> npt.NDArray[np.int64]:
    """Time of the first of `ends` (time ns, end offset; in order of time) past each offset; -1 if none is."""
    times = np.array([time_ns for time_ns, _ in ends] + [-1], np.int64)
    passed = np.maximum.accumulate(np.array([end for _, end in ends], np.int64))
    return times[np.searchsorted(passed, offsets, side="right")]


class Watcher:
    """Records the ends of `topic`'s partitions while the block runs."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
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
        intended, visible = [], []
        for part, rows in self._read().items():
            offsets = np.array([offset for offset, _ in rows], np.int64)
            seen = seen_at(offsets, self._ends[part])
            emitted = np.array([emitted for _, emitted in rows], np.int64)
            intended.append(emitted[seen >= 0])
            visible.append(seen[seen >= 0])
        arrived = np.concatenate([np.empty(0, np.int64), *visible])
        order = np.argsort(arrived, kind="stable")
        return Stamps(np.concatenate([np.empty(0, np.int64), *intended])[order], arrived[order])

    def _watch(self) -> None:
        while not self._ended.is_set():
            for part in self._partitions:
                _, end = self._consumer.get_watermark_offsets(part, timeout=5, cached=False)
                noted = self._ends[part.partition]
                if not noted or end > noted[-1][1]:
                    noted.append((time.time_ns(), end))
            time.sleep(_PERIOD_S)

    def _read(self) -> dict[int, list[tuple[int, int]]]:
        """Partition -> (offset, intended emission) of all rows below the last recorded end."""
        decode = msgspec.json.Decoder(_Row).decode
        found: dict[int, list[tuple[int, int]]] = {part.partition: [] for part in self._partitions}
        until = {number: ends[-1][1] for number, ends in self._ends.items() if ends and ends[-1][1] > 0}
        self._consumer.assign([part for part in self._partitions if part.partition in until])
        deadline = time.monotonic() + _READ_S
        open_parts = set(until)
        while open_parts and time.monotonic() < deadline:
            for message in self._consumer.consume(10_000, timeout=0.2):
                if message.error() is None and message.offset() < until[message.partition()]:
                    found[message.partition()].append((message.offset(), decode(message.value()).emitted))
            at = {part.partition: part.offset for part in self._consumer.position(list(self._partitions))}
            open_parts = {number for number in open_parts if at.get(number, 0) < until[number]}
        self._consumer.close()
        if open_parts:
            raise TimeoutError(
                f"the topic could not be read to its end within {_READ_S:.0f} s: partitions {open_parts}"
            )
        return found
