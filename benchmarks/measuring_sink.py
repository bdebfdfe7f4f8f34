"""A sink that measures instead of writing: the delay of each row's arrival after the *intended* emission.

Arriving rows are stored as two numbers in an array, in a few microseconds per batch; pre-commit writes the array of a
checkpoint to one file. (Processing stored batches in pre-commit blocked the interpreter for milliseconds and caused
most of the measured tail.) The first write of each generation is recorded at once, for recovery times.
"""

import time
import uuid
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime import TwoPhaseCommitSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.data.few_rows import FewRows


class _Rows:
    """Intended emission and arrival of each row; nanoseconds."""

    def __init__(self) -> None:
        self.intended, self.arrived = array("q"), array("q")

    def add(self, arrived_ns: int, intended_ns: npt.NDArray[np.int64] | list[int]) -> None:
        if isinstance(intended_ns, list):
            self.intended.extend(intended_ns)
        else:
            self.intended.frombytes(intended_ns.tobytes())
        self.arrived.extend([arrived_ns] * len(intended_ns))


class MeasuringSink(TwoPhaseCommitSink):
    """A measuring sink, at least once: replayed rows are measured again.

    `folder` is on the machine of the slots. With `keep_s` the loop writes the array at this interval, so that a kill
    loses no more than that."""

    guarantee = "at_least_once"

    def __init__(self, folder: str, column: str = "intended_at", keep_s: float | None = None) -> None:
        self.folder = folder
        self.column = column
        self.keep_s = keep_s

    def __repr__(self) -> str:
        return f"MeasuringSink({self.folder!r})"

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._wrote = False
        self._kept_ns = time.time_ns()
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def begin_transaction(self) -> "_Rows":
        return _Rows()

    def write(self, transaction: "_Rows", rows: pa.RecordBatch) -> None:
        now_ns = time.time_ns()
        column = rows.column(self.column)
        intended_ns = np.frombuffer(column.buffers()[1], np.int64, column.offset + len(column))[column.offset :]
        self._note(transaction, now_ns, intended_ns)

    def write_few(self, transaction: "_Rows", rows: FewRows) -> None:
        self._note(transaction, time.time_ns(), rows.columns[rows.layout.positions[self.column]])

    def _note(self, transaction: "_Rows", now_ns: int, intended_ns: npt.NDArray[np.int64] | list[int]) -> None:
        transaction.add(now_ns, intended_ns)
        if self.keep_s is not None and now_ns - self._kept_ns > self.keep_s * 1e9:
            self._keep(transaction)
            self._kept_ns = now_ns
        if not self._wrote:
            self._wrote = True
            name = f"first-{self._context.token}-{self._context.subtask}-{now_ns}"
            Path(self.folder, name).touch()

    def pre_commit(self, transaction: "_Rows", checkpoint: int) -> None:
        self._keep(transaction)

    def _keep(self, transaction: "_Rows") -> None:
        if transaction.intended:
            name = f"rows-{self._context.token}-{self._context.subtask}-{uuid.uuid4().hex}"
            noted = np.array([transaction.intended, transaction.arrived])
            np.save(Path(self.folder, f".{name}.npy"), noted)
            Path(self.folder, f".{name}.npy").rename(Path(self.folder, f"{name}.npy"))
            del transaction.intended[:], transaction.arrived[:]

    def commit(self, committable: bytes) -> None:
        """Never called: pre-commit returns nothing."""

    def abort(self, committable: bytes) -> None:
        """Does nothing: no write can be undone."""


class CountingSink(MeasuringSink):
    """Stores (number of rows, arrival) of each batch: a stamp per row of a flat-out job would fill the disk."""

    def _note(self, transaction: "_Rows", now_ns: int, intended_ns: npt.NDArray[np.int64] | list[int]) -> None:
        super()._note(transaction, now_ns, [len(intended_ns)])


def first_writes(folder: Path) -> dict[int, int]:
    """Fencing token → time of the first write of any subtask in that generation (ns)."""
    found: dict[int, int] = {}
    for file in folder.glob("first-*"):
        _, token, _, now_ns = file.name.split("-")
        found[int(token)] = min(int(now_ns), found.get(int(token), 2**63))
    return found
