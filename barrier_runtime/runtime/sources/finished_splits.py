"""The splits of a subtask that ended, and what its snapshots say of them.

A checkpoint costs what is new: runs that a decided checkpoint has stored are named again and not written again. Runs
are merged off the loop.
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from barrier_runtime.connectors.name_set import RECORD_BYTES, NameSet, SortedRun, merged
from barrier_runtime.operators.base import Capture, SequentialExecutor
from barrier_runtime.runtime.sources.progress import (
    FINISHED_VALUE,
    PROGRESS_VERSION,
    RUN_VALUE,
    SPLITS_VALUE,
    SourceProgress,
)
from barrier_runtime.state.snapshots.snapshot import FileRef

_SMALL_VALUE = 4_096 // RECORD_BYTES  # names in a value that stands in the manifest


class FinishedSplits:
    """Names of the splits that ended, as values of snapshots. On the slot's loop, but for the merging of runs."""

    def __init__(self, names: NameSet, executor: SequentialExecutor) -> None:
        self._names = names
        self._executor = executor
        self._stored: Mapping[str, FileRef] = {}  # of the decided checkpoint
        self._merging = False

    def size_of(self, id: str) -> int | None:
        return self._names.size_of(id)

    def add(self, id: str, size: int | None, mark: int) -> None:
        self._names.add(id, size, mark)
        if self._names.freeze():
            self._merge()

    def capture(self, progress: SourceProgress) -> Capture:
        """`progress`, and the names: those runs that no decided checkpoint has stored, and what is in none."""
        if self._names.freeze(_SMALL_VALUE):
            self._merge()
        added = self._names.added()
        runs = {f"{RUN_VALUE}{run.name}": run for run in self._names.runs}
        finished = len(added) // RECORD_BYTES + sum(map(len, runs.values()))
        progress = msgspec.structs.replace(progress, finished=finished, version=PROGRESS_VERSION)
        values = {name: run.data for name, run in runs.items() if name not in self._stored}
        stored = {name: self._stored[name] for name in runs if name in self._stored}
        if added:
            values[FINISHED_VALUE] = added
        values[SPLITS_VALUE] = msgspec.json.encode(progress)
        return Capture(values, stored=stored, on_stored=self._on_stored)

    def _on_stored(self, objects: Mapping[str, FileRef]) -> None:
        self._stored = objects

    def _merge(self) -> None:
        window = self._names.to_merge()
        if not window or self._merging:
            return
        self._merging = True

        def done(run: SortedRun, error: BaseException | None) -> None:
            self._merging = False
            if error is not None:
                raise error
            self._names.replace(window, run)
            self._merge()

        self._executor.submit(partial(merged, [run.data for run in window]), done)
