"""What a certification is given: the sink, its reader, how rows are made; and what a decision and a plan consist of."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.testing.judge import Promise

# commit: rows, a decided checkpoint, commits; late: the same, but commits wait for a later one; expire: the checkpoint
# is given up and the next one covers its rows; half: only subtask 0 has rows; empty: nobody has.
Round = Literal["commit", "late", "expire", "half", "empty"]


@dataclass(frozen=True)
class Target:
    """What is certified, and how to look at it."""

    make_sink: Callable[[], TwoPhaseCommitSink]
    read: Callable[[int], Iterable[Mapping[str, Any]]]  # rows with this id or a higher one; others do no harm
    make_row: Callable[[int], dict[str, Any]]
    schema: pa.Schema
    promise: Promise
    make_store: Callable[[str], ObjectStore]
    job_store: ObjectStore
    parallelism: int
    rows: int  # a subtask's of one checkpoint
    files: frozenset[str]  # of the sink
    every_line: bool  # processes die also between two lines of these
    kill: Callable[[TwoPhaseCommitSink], None] | None
    leftovers: Callable[[], Collection[object]] | None


@dataclass(frozen=True)
class Decision:
    checkpoint: int
    manifest: tuple[OperatorSnapshot, ...]
    position: int  # rows before it
    rounds: int  # of the plan that are done
