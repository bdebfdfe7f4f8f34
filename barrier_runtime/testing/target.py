"""Parameters of a certification, and the elements of decisions and plans."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.testing.judge import Promise

# commit: rows, a decided checkpoint, commits; late: the same, but commits wait for a later checkpoint; expire: the
# checkpoint is aborted and the next checkpoint covers the rows; half: only subtask 0 has rows; empty: no rows.
Round = Literal["commit", "late", "expire", "half", "empty"]


@dataclass(frozen=True)
class Target:
    make_sink: Callable[[], TwoPhaseCommitSink]
    read: Callable[[int], Iterable[Mapping[str, Any]]]  # rows with this id or a higher id; others do no harm
    make_row: Callable[[int], dict[str, Any]]
    schema: pa.Schema
    promise: Promise
    make_store: Callable[[str], ObjectStore]
    job_store: ObjectStore
    parallelism: int
    rows: int  # of a subtask per checkpoint
    files: frozenset[str]  # of the sink
    every_line: bool  # processes also die between two lines of these files
    kill: Callable[[TwoPhaseCommitSink], None] | None
    leftovers: Callable[[], Collection[object]] | None


@dataclass(frozen=True)
class Decision:
    checkpoint: int
    manifest: tuple[OperatorSnapshot, ...]
    position: int  # rows before the checkpoint
    rounds: int  # completed rounds of the plan
