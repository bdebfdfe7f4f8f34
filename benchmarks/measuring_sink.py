"""A sink that measures instead of writing: for every row, how long after its *intended* emission it arrived.

Nothing is computed on the loop: batches are kept with their time of arrival, and pre-commit (off the loop) writes the
figures of a checkpoint to one file. The first write of each generation is noted at once, for recovery times.
"""

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime import TwoPhaseCommitSink
from barrier_runtime.sinks.base import SinkContext


class MeasuringSink(TwoPhaseCommitSink):
    """`folder` is on the machine of the slots. At least once: rows that are replayed are measured again."""

    guarantee = "at_least_once"

    def __init__(self, folder: str, column: str = "intended_at") -> None:
        self.folder = folder
        self.column = column

    def __repr__(self) -> str:
        return f"MeasuringSink({self.folder!r})"

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._wrote = False
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def begin_transaction(self) -> list[tuple[int, pa.Array]]:
        return []

    def write(self, transaction: list[tuple[int, pa.Array]], rows: pa.RecordBatch) -> None:
        now_ns = time.time_ns()
        transaction.append((now_ns, rows.column(self.column)))
        if not self._wrote:
            self._wrote = True
            name = f"first-{self._context.token}-{self._context.subtask}-{now_ns}"
            Path(self.folder, name).touch()

    def pre_commit(self, transaction: list[tuple[int, pa.Array]], checkpoint: int) -> None:
        if transaction:
            intended = np.concatenate([column.view(pa.int64()).to_numpy() for _, column in transaction])
            arrived = np.repeat([now for now, _ in transaction], [len(column) for _, column in transaction])
            name = f"rows-{self._context.token}-{self._context.subtask}-{checkpoint}-{uuid.uuid4().hex}"
            np.savez(Path(self.folder, f"{name}.npz"), intended=intended, arrived=arrived)

    def commit(self, committable: bytes) -> None:
        """Never called: pre-commit hands nothing over."""

    def abort(self, committable: bytes) -> None:
        """Nothing can be taken back."""


@dataclass(frozen=True)
class Measured:
    """Nanoseconds since the epoch, one entry per row."""

    intended: npt.NDArray[np.int64]
    arrived: npt.NDArray[np.int64]

    def between(self, first_ns: float, last_ns: float) -> npt.NDArray[np.float64]:
        """Latencies in ms of the rows that were due in [first_ns, last_ns)."""
        chosen = (self.intended >= first_ns) & (self.intended < last_ns)
        return np.asarray((self.arrived[chosen] - self.intended[chosen]) / 1e6, np.float64)


def measured(folder: Path) -> Measured:
    intended, arrived = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for file in folder.glob("rows-*.npz"):
        with np.load(file, allow_pickle=False) as arrays:
            intended.append(arrays["intended"])
            arrived.append(arrays["arrived"])
    return Measured(np.concatenate(intended), np.concatenate(arrived))


def first_writes(folder: Path) -> dict[int, int]:
    """Fencing token → time of the first write of any subtask in that generation (ns)."""
    found: dict[int, int] = {}
    for file in folder.glob("first-*"):
        _, token, _, now_ns = file.name.split("-")
        found[int(token)] = min(int(now_ns), found.get(int(token), 2**63))
    return found
