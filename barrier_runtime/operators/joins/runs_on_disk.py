"""Runs of a join that do not fit in memory, in files of this machine that are mapped into it.

All runs of an operator, both sides, have a share of the slot's memory (`SlotMemory.hold`). When they outgrow it the
oldest ones are written and mapped: they are read as before, and the kernel keeps of their pages what memory it has.

    a run        what happens                                then
    in memory    the runs outgrow their share                on disk: its rows, keys, times and order; not which live
    on disk      a batch is looked up, rows go out           on disk
    on disk      half of it is dead, or it is merged         gone; what lives is a new run, in memory
    either       a snapshot                                  as it was; the snapshot has its rows, under the same name
    on disk      the process dies                            the file is gone; rows come from a snapshot
A file belongs to its run alone and has no name, so nothing of it is left when the run is dropped, however that comes.
"""

import mmap
import tempfile
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.joins.row_run import RowRun
from barrier_runtime.state.errors import Unavailable

_PARTS = 8  # of the share: a run is not merged beyond one, so none takes long to write


class RunsOnDisk:
    def __init__(self, directory: Path, held_bytes: Callable[[], int], where: str) -> None:
        """`held_bytes`: the share now. `where`: the operator, in errors."""
        self._directory = directory
        self._held_bytes = held_bytes
        self._where = where

    @property
    def most_bytes(self) -> int:
        return self._held_bytes()

    @property
    def most_merged_bytes(self) -> int:
        return self.most_bytes // _PARTS

    def relieve(self, sides: Sequence[Sequence[RowRun]]) -> None:
        """Runs go to disk, the oldest of each side first, until the others are within the share."""
        most = self.most_bytes
        held = sum(run.held_bytes for runs in sides for run in runs)
        if held <= most:
            return
        for pair in zip_longest(*sides):
            for run in pair:
                if run is not None and not run.on_disk:
                    before = run.held_bytes
                    self._move(run)
                    held += run.held_bytes - before
                    if held <= most:
                        return

    def _move(self, run: RowRun) -> None:
        columns = run.ordered
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._directory) as file:
                for column in columns:
                    file.write(column.data)
                file.write(bytes(-file.tell() % 64))  # where Arrow begins
                first = file.tell()
                with pa.ipc.new_stream(file, run.rows.schema) as writer:
                    writer.write_batch(run.rows)
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise Unavailable(
                f"{self._where}: rows that do not fit in memory could not be written to {self._directory} ({error}): "
                "free some space there, or give the job more state_memory_mb"
            ) from error
        with pa.ipc.open_stream(pa.py_buffer(mapped).slice(first)) as reader:
            rows = reader.read_next_batch()
        size = len(run)
        of_file = [np.frombuffer(mapped, np.int64, size, 8 * size * number) for number in range(len(columns))]
        run.is_on_disk(rows, *of_file)
