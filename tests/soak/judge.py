"""Reads all outputs of a soak as users do, while the job runs, and checks each row.

`counted` must hold every record once, in order of its key, with the right count (`chaos.verdict`). The rows of
`counted` say which windows and joined rows are right: each must appear once. Memory is bounded, so a soak of days has a
judge, too: only expected rows are remembered.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.state.store.open import open_store
from tests.integration.chaos.verdict import Figures, Rows, SinkAudit, Truth
from tests.integration.chaos.workload import GROUPS, KEYS, SPLITS
from tests.soak.samples import Latency
from tests.soak.topic import Topic, parsed_lines
from tests.soak.workload import JOINED_EVERY, PARTITIONS, WINDOW_S, WINDOWS, counted_topic, joined_topic

_MS = 1_000_000


@dataclass
class Expected:
    """Rows that must appear once, each with the right value: `unexplained` and `missing` are empty at the end."""

    missing: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    early: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    seen: int = 0
    doubled: int = 0
    wrong: int = 0

    def expect(self, name: tuple[int, ...], value: tuple[int, ...]) -> None:
        found = self.early.pop(name, None)
        if found is None:
            self.missing[name] = value
        else:
            self.wrong += found != value

    def see(self, name: tuple[int, ...], value: tuple[int, ...], known: bool) -> None:
        """`known`: the row was expected at some time, so a row that is not missing is a second row."""
        self.seen += 1
        wanted = self.missing.pop(name, None)
        if wanted is not None:
            self.wrong += wanted != value
        elif known or name in self.early:
            self.doubled += 1
        else:
            self.early[name] = value


class Judge:
    def __init__(self, job: str, bootstrap: str, target: Path) -> None:
        self._job = job
        self._counted = Topic(bootstrap, counted_topic(job), PARTITIONS)
        self._joined = Topic(bootstrap, joined_topic(job), PARTITIONS)
        self._store = open_store(str(target))
        self._target = target
        self._records = 0
        self._audit = SinkAudit(Truth(SPLITS, KEYS, GROUPS))
        self.joined = Expected()
        self._open: dict[tuple[int, int], list[int]] = {}  # (group, start) -> rows and sum, until now
        self._fired: dict[int, int] = {}  # group -> start of the newest window seen
        self.windows = self.windows_wrong = self.windows_doubled = self.windows_lost = 0
        self._late_ms: list[np.ndarray] = []

    @property
    def figures(self) -> Figures:
        return self._audit.figures

    @property
    def rows(self) -> int:
        return self.figures.rows

    def look(self) -> None:
        """Reads all new rows. Windows first: their rows of `counted` are visible before them."""
        windows = self._new_windows()
        joined = self._joined.read()
        while table := self._counted.read():
            self._look_at_counted(table)
        for window in windows:
            self._look_at_window(*window)
        self._look_at_joined(joined)

    def latency(self) -> Latency | None:
        """Of the rows since the last call."""
        late_ms, self._late_ms = self._late_ms, []
        if not late_ms:
            return None
        whole = np.concatenate(late_ms)
        p50, p999 = np.percentile(whole, [50, 99.9])
        return Latency(len(whole), float(p50), float(p999))

    def findings(self) -> dict[str, int]:
        """All zeros if every row that appeared is right and no row is missing below a later row."""
        return {
            "lost": self.figures.lost + self.windows_lost,
            "doubled": self.figures.duplicated + self.joined.doubled + self.windows_doubled,
            "out_of_order": self.figures.out_of_order,
            "wrong": self.figures.wrong_state + self.joined.wrong + self.windows_wrong,
            "unexplained": len(self.joined.early),
        }

    def missing(self, rows: int) -> dict[str, int]:
        """Rows that have not appeared yet, of a job that has made `rows` records."""
        return {"counted": rows - sum(self._audit.positions), "joined": len(self.joined.missing)}

    def close(self) -> None:
        self._counted.close()
        self._joined.close()

    # ------------------------------------------------------------ each output

    def _look_at_counted(self, table: pa.Table) -> None:
        columns = {name: table.column(name).to_numpy() for name in ("value", "key", "n", "due_ns", "group")}
        self._late_ms.append((time.time_ns() - columns["due_ns"]) / _MS)
        rows = Rows(columns["value"], columns["key"], columns["n"], columns["due_ns"])
        before = sum(self._audit.positions)
        self._audit.observe(f"{self._counted.name}, {before} rows before", rows)
        few = columns["value"] % JOINED_EVERY == 0
        for value, n in zip(columns["value"][few].tolist(), columns["n"][few].tolist(), strict=True):
            self.joined.expect((value,), (n,))
        starts = columns["due_ns"] // (WINDOW_S * 1000 * _MS) * WINDOW_S
        for group, start, value in zip(
            columns["group"].tolist(), starts.tolist(), columns["value"].tolist(), strict=True
        ):
            sums = self._open.setdefault((group, start), [0, 0])
            sums[0] += 1
            sums[1] += value

    def _look_at_joined(self, table: pa.Table | None) -> None:
        if table is None:
            return
        for value, n in zip(table.column("value").to_pylist(), table.column("n").to_pylist(), strict=True):
            self.joined.see((value,), (n,), known=value // SPLITS < self._audit.positions[value % SPLITS])

    def _look_at_window(self, group: int, start: int, n: int, total: int) -> None:
        self.windows += 1
        newest = self._fired.get(group, -1)
        right = self._open.pop((group, start), None)
        if right is None:
            self.windows_doubled += 1
        elif right != [n, total]:
            self.windows_wrong += 1
        if start < newest:
            return
        self._fired[group] = start
        skipped = [place for place in self._open if place[0] == group and place[1] < start]
        self.windows_lost += len(skipped)
        for place in skipped:
            del self._open[place]

    def _new_windows(self) -> list[tuple[int, int, int, int]]:
        found = []
        for record in read_commit_log(self._store, self._job, WINDOWS, self._records):
            self._records += 1
            for file in record.files:
                table = parsed_lines((self._target / file.name).read_bytes())
                rows = [table.column(name).to_pylist() for name in ("group", "window_start", "n", "total")]
                found += [(g, int(start.timestamp()), n, total) for g, start, n, total in zip(*rows, strict=True)]
        return sorted(found, key=lambda window: window[1])
