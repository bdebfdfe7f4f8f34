"""What a certification is given: the sink, its reader, how rows are made; and what a decision and a plan consist of."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from barrier_runtime.certify_judge import Promise
from barrier_runtime.sinks.base import TwoPhaseCommitSink
from state.object_store import ObjectStore
from state.snapshot import OperatorSnapshot

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
    files: frozenset[str]  # of the sink, whose lines are counted; none: no process dies inside a call
    kill: Callable[[TwoPhaseCommitSink], None] | None
    leftovers: Callable[[], Collection[object]] | None


@dataclass(frozen=True)
class Decision:
    checkpoint: int
    manifest: tuple[OperatorSnapshot, ...]
    position: int  # rows before it
    rounds: int  # of the plan that are done
