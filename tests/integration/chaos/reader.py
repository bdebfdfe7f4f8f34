"""Watches the target as users would, all through the run: every commit record and every file, as soon as they appear.

Through the commit log (the subject of the verdict): the rows of a record become visible together, so after each record
all rows seen form one vector of source positions. And by listing the folder: a visible file is complete at once and
never changes, and at the end every visible file is named by a record.
"""

import hashlib
import threading
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from barrier_runtime.connectors.files.sink.commit_log import CommitRecord, commits_prefix, read_commit_log
from barrier_runtime.state.store.open import open_store
from tests.integration.chaos import workload
from tests.integration.chaos.verdict import Figures, Rows, SinkAudit, Truth

TRUTH = Truth(workload.SPLITS, workload.KEYS, workload.GROUPS)
SINKS = (workload.COUNTED, workload.TOTALS)
_POLL_S = 0.1
_LIST_EVERY = 5  # polls
_COLUMNS = ("value", "key", "n", "due_ns")
_GROUP_COLUMNS = ("group", "m", "total")
_TOTALS_SCHEMA = pa.schema([(name, pa.int64()) for name in ("value", "key", "group", "due_ns", "n", "m", "total")])


@dataclass(frozen=True)
class Reached:
    """At `written_ns` a record appeared; since then the rows of every split due until `due_ns` are visible."""

    written_ns: int
    due_ns: int


class SinkView:
    def __init__(self, target: Path, sink: str) -> None:
        self._target = target
        self._store = open_store(str(target))
        self._sink = sink
        self.audit = SinkAudit(TRUTH)
        self.records = 0
        self.files: dict[str, str] = {}  # name -> sha256, as recorded
        self.timeline: list[Reached] = []

    def poll(self) -> None:
        for record in read_commit_log(self._store, workload.JOB, self._sink, self.records):
            self.records += 1
            self._observe(record)

    def committed_after(self, moment_ns: int) -> int | None:
        """Time of the first record that covers every split's rows up to those due after `moment_ns`; None: not yet."""
        at = bisect_right(self.timeline, moment_ns, key=lambda reached: reached.due_ns)
        return self.timeline[at].written_ns if at < len(self.timeline) else None

    def _observe(self, record: CommitRecord) -> None:
        where = f"sink {self._sink}, record {self.records} (checkpoint {record.checkpoint}, token {record.token})"
        parts = []
        for file in record.files:
            if file.name in self.files:
                self.audit.torn(where, f"{file.name} is named by two records")
            self.files[file.name] = file.sha256
            rows = self._read(where, file.name, file.sha256)
            if rows is not None:
                if len(rows.value) != file.rows:
                    self.audit.torn(where, f"{file.name} has {len(rows.value)} rows, its record says {file.rows}")
                parts.append(rows)
        if parts:
            self.audit.observe(where, Rows.joined(parts))
        key = f"{commits_prefix(workload.JOB, self._sink)}{self.records:020d}.json"
        self.timeline.append(Reached((self._target / key).stat().st_mtime_ns, self.audit.due_ns))

    def _read(self, where: str, name: str, sha256: str) -> Rows | None:
        try:
            data = (self._target / name).read_bytes()
        except FileNotFoundError:
            self.audit.torn(where, f"{name} is not there")
            return None
        if hashlib.sha256(data).hexdigest() != sha256:
            self.audit.torn(where, f"{name} has another hash than its record says")
        try:
            return parsed(name, data)
        except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
            self.audit.torn(where, f"{name} cannot be read: {error}")
            return None


def parsed(name: str, data: bytes) -> Rows:
    if name.endswith(".parquet"):
        table = pyarrow.parquet.read_table(pa.BufferReader(data))
        return Rows(*(_numbers(table, column) for column in _COLUMNS))
    options = pyarrow.json.ParseOptions(explicit_schema=_TOTALS_SCHEMA, unexpected_field_behavior="error")
    table = pyarrow.json.read_json(pa.BufferReader(data), parse_options=options)
    return Rows(*(_numbers(table, column) for column in (*_COLUMNS, *_GROUP_COLUMNS)))


def _numbers(table: pa.Table, column: str) -> np.ndarray:
    return table.column(column).to_numpy()


class FolderView:
    """The folder as listed: each file's hash at the first sight, until a record names the file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._seen: dict[str, str] = {}

    def poll(self, recorded: dict[str, str]) -> None:
        for name in self.names() - self._seen.keys():
            self._seen[name] = recorded.get(name) or hashlib.sha256((self._target / name).read_bytes()).hexdigest()

    def names(self) -> set[str]:
        entries = [entry.name for entry in self._target.iterdir()]
        return {name for name in entries if not name.startswith(("_", "."))}

    def compare(self, recorded: dict[str, str]) -> tuple[list[str], list[str]]:
        """(files shown but never recorded, files that changed since the first sight)."""
        shown = self.names()
        unrecorded = sorted(shown - recorded.keys())
        changed = sorted(
            name for name, sha256 in self._seen.items() if name not in shown or recorded.get(name, sha256) != sha256
        )
        return unrecorded, changed


class Reader:
    """A thread that polls both views. `error` is the exception that ended the thread early."""

    def __init__(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        self._target = target
        self.sinks = {sink: SinkView(target, sink) for sink in SINKS}
        self.folder = FolderView(target)
        self.polls = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def committed_after(self, moment_ns: int) -> int | None:
        """Time at which every sink had shown every split's rows up to those due after `moment_ns`."""
        times = [view.committed_after(moment_ns) for view in self.sinks.values()]
        return None if any(time_ns is None for time_ns in times) else max(time_ns for time_ns in times if time_ns)

    @property
    def recorded(self) -> dict[str, str]:
        return {name: sha256 for view in self.sinks.values() for name, sha256 in view.files.items()}

    def _run(self) -> None:
        try:
            while not self._stop.wait(_POLL_S):
                self._look()
            self._look()
        except Exception as error:
            self.error = error
            raise

    def _look(self) -> None:
        if self.polls % _LIST_EVERY == 0:
            self.folder.poll(self.recorded)
        for view in self.sinks.values():
            view.poll()
        self.polls += 1


def final_figures(target: Path) -> dict[str, Figures]:
    """The verdict on the whole result, read anew from the first record to the last."""
    views = {sink: SinkView(target, sink) for sink in SINKS}
    for view in views.values():
        view.poll()
    return {sink: view.audit.figures for sink, view in views.items()}
