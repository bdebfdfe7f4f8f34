"""Run of a replay in this process.

    restore ─► read to the positions ─► slots are idle ─► stop with a last checkpoint ─► end
                     │ rows are missing, and none arrives for 30 s without a fetch: `InvalidJob` names the missing rows
                     │ a function raises: end, with the function's error

The observed operator gets one key of the stored checkpoint. The replaying job has a log in a temporary folder, and is
never restarted.
"""

import asyncio
import contextlib
import pdb
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.read_range import OpenRange, ReadRange
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.savepoint import Savepoint
from barrier_runtime.coordinator.savepoint_import import import_savepoint
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.launch.local import make_runner, raised_in, run_graph
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.operators.base import Operator
from barrier_runtime.replay.observing import Coming, DebuggerQuit, masked_row, shown_error
from barrier_runtime.runtime.host.clock import SystemClock
from barrier_runtime.runtime.slot import Slot
from barrier_runtime.state.backend.stored_part import StoredPart, WrittenPart
from barrier_runtime.state.columns.segment import Segment, as_binary, chosen
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_codec import decode_key
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.kv.shard import PREFIX_BYTES
from barrier_runtime.state.scratch import scratch_folder
from barrier_runtime.state.snapshots.snapshot import KEYS, ONE_VALUE, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.read_only import LinkedStore
from barrier_runtime.state.texts import counted
from barrier_runtime.state_tables.arrow_columns import masked
from barrier_runtime.state_tables.finding import StoredCheckpoint
from barrier_runtime.state_tables.wanted_keys import as_stored, key_fields

SCRATCH = "barrier-runtime-replay-"
_GROUP_BYTES = 2


@dataclass(frozen=True)
class OneKey:
    """Restricts the restored state of `operator`; `key` is in the form of state keys."""

    operator: str
    key: tuple[Any, ...]


def state_key(
    manifest: Manifest | None, operator: str, values: Mapping[str, Any], rows: pa.Schema | None
) -> tuple[Any, ...] | None:
    """State key with these `values`; None if the key's types are unknown.

    `rows`: the operator's input schema in the flow, for checkpoints of releases that did not store key types.
    """
    snapshots = () if manifest is None else manifest.operators
    told = next((each.values[KEYS] for each in snapshots if each.operator == operator and KEYS in each.values), b"")
    fields = key_fields(told.decode()) if told else []
    if not told and rows is not None and set(values) <= set(rows.names):
        fields = [(name, rows.field(name).type) for name in values]
    if len(fields) != len(values) or any(kind is None for _, kind in fields):
        return None
    where = f"operator {operator!r}"
    given = zip(values.values(), fields, strict=True)
    return tuple(as_stored(value, kind, name, where) for value, (name, kind) in given)


def begin(store: LinkedStore, at: StoredCheckpoint, spec: JobSpec, sinks: Collection[str], only: OneKey | None) -> None:
    """Makes `at` the newest checkpoint of the replaying job.

    For `sinks` only rows in flight are restored.
    """
    operators = tuple(
        each if each.operator not in sinks else msgspec.structs.replace(each, values={}, objects={}, keyed=None)
        for each in at.manifest.operators
    )
    if only is not None:
        operators = tuple(_of_one_key(at, each, only) if each.operator == only.operator else each for each in operators)
    present = {name for chain in spec.chains for name in chain.operators}
    operators = tuple(each for each in operators if each.operator in present)
    taken = msgspec.structs.replace(at.manifest, operators=operators, drained=msgspec.UNSET)
    import_savepoint(store, spec, Savepoint(id=uuid.uuid4().hex, taken=taken), store.link)


def _of_one_key(at: StoredCheckpoint, snapshot: OperatorSnapshot, only: OneKey) -> OperatorSnapshot:
    if snapshot.keyed is None:
        return snapshot
    return msgspec.structs.replace(snapshot, keyed=_reduced(at.store, snapshot.keyed, only.key))


def _reduced(store: ObjectStore, keyed: KeyedSnapshot, key: tuple[Any, ...]) -> KeyedSnapshot:
    group, width = key_group(key, keyed.max_parallelism), len(key)
    groups = keyed.key_group_first, keyed.key_group_last
    with (
        scratch_folder(SCRATCH) as folder,
        WrittenPart(folder / "new", "memory", keyed.max_parallelism, groups, keyed.states, keyed.described) as made,
    ):
        if groups[0] <= group <= groups[1]:
            with StoredPart(keyed, store, folder / "old") as stored:
                for state in keyed.states:
                    made.write(_entries_of(stored, keyed, state, group, key))
                    for segment in stored.segments(state, group, group):
                        made.add(_rows_of(segment, key, width, keyed.max_parallelism))
        return made.inline()


def _entries_of(
    stored: StoredPart, keyed: KeyedSnapshot, state: str, group: int, key: tuple[Any, ...]
) -> list[tuple[bytes, bytes | None]]:
    what = keyed.described.get(state, ONE_VALUE)
    timers = what.kind == "timers"
    found: list[tuple[bytes, bytes | None]] = []
    for whole, data in stored.entries(state, group, group):
        fields = decode_key(whole, PREFIX_BYTES)
        own = fields[1:] if timers else fields[: len(key)]
        if own == key:
            found.append((whole, data))
    return found


def _rows_of(segment: Segment, key: tuple[Any, ...], width: int, max_parallelism: int) -> Segment:
    if isinstance(segment.keys, np.ndarray):
        same = np.ones(segment.keys.shape[1], np.bool_)
        for field, value in zip(segment.keys[:width], key, strict=False):
            same &= field == value
        at = np.flatnonzero(same)
    else:
        whole = as_binary(segment.keys, segment.key_width, max_parallelism)
        group = key_group(key, max_parallelism).to_bytes(_GROUP_BYTES, "big")
        at = np.array(
            [
                place
                for place, each in enumerate(whole.to_pylist())
                if each[:_GROUP_BYTES] == group and decode_key(each, _GROUP_BYTES)[:width] == key
            ],
            np.intp,
        )
    columns = {name: column[at] for name, column in segment.columns.items()}
    removed = chosen(segment.removed, np.empty(0, np.intp))
    return Segment(segment.state, segment.key_width, True, chosen(segment.keys, at), columns, removed)


_FUNCTIONS = ("_call", "_function")  # attributes of operators with the user's function


class Stops:
    """`debugger`: with streams of its own; None: on this terminal. `redact`: columns hidden in printed
    rows and state; the debugger itself shows everything.
    """

    def __init__(self, debugger: pdb.Pdb | None = None, redact: Sequence[str] = ()) -> None:
        self._debugger = debugger or pdb.Pdb(nosigint=True, readrc=False)
        self._redact = redact
        self._quit = False
        self._set_quit, self._debugger.set_quit = self._debugger.set_quit, self._quits  # type: ignore[method-assign]

    def call(self, operator: Operator, coming: Coming, work: Callable[[], None]) -> None:
        """Calls `work`, and stops at the first line of the user's function, else of `work`.

        Raises `DebuggerQuit` when the user leaves the debugger, even if the operator handles the exception.
        """
        debugger = self._debugger
        debugger.message(f"row {coming.number}: {masked_row(coming.row, self._redact)}")
        if coming.before is not None:
            debugger.message(f"state: {masked(coming.before, self._redact)}")
        code = code_of(operator)
        debugger.reset()
        if code is not None:
            debugger.clear_all_breaks()
            debugger.set_break(code.co_filename, code.co_firstlineno, funcname=code.co_name)
            debugger.rcLines = ["continue"]  # from our code to the user's
        try:
            debugger.runcall(work)
        finally:
            if self._quit:
                raise DebuggerQuit("the debugger was left") from None

    def _quits(self) -> None:
        self._quit = True
        self._set_quit()


def code_of(operator: Operator) -> CodeType | None:
    for name in _FUNCTIONS:
        code = _code(getattr(operator, name, None))
        if code is not None:
            return code
    return None


def _code(function: Any) -> CodeType | None:
    for _ in range(10):
        code = getattr(function, "__code__", None)
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        inner = [each for each in cells if callable(each)]
        if code is None or "barrier_runtime" not in str(getattr(function, "__module__", "")) or not inner:
            return code
        function = next((each for each in inner if hasattr(each, "__code__")), None)
    return None


_ROWS_TIMEOUT_S = 30.0  # for a row of a source that has unread rows and fetches none
_LOOK_S = 0.01
_RESTS = 3  # consecutive looks at idle slots: rows may be between two slots
_IDLE_S = 2.0  # after this time without rows an `OpenRange` counts as read


class StandingClock(SystemClock):
    """The wall clock stands at `wall_ms`; the monotonic clock advances."""

    def __init__(self, wall_ms: int) -> None:
        self._wall_ns = wall_ms * 1_000_000

    def wall_ns(self) -> int:
        return self._wall_ns


@dataclass(frozen=True)
class ReplayEnded:
    status: JobStatus
    trouble: BaseException | None
    unread: int = 0  # splits of sources that gave no rows for a while

    def check(self, redact: Sequence[str] = ()) -> None:
        """Raises the error that ended the replay."""
        error = self.trouble
        if error is None and self.status.outcome not in ("cancelled", "finished"):
            error = InvalidJob(f"the replay ended ({self.status.outcome}): {self.status.error or self.status.reason}")
        if error is not None:
            raise shown_error(error, redact)


async def run_replay(
    graph: JobGraph,
    spec: JobSpec,
    store: ObjectStore,
    options: JobOptions,
    ranges: Mapping[str, ReadRange],
    wall_ms: int | None,
) -> ReplayEnded:
    """Runs until all ranges are read. `wall_ms`: see `StandingClock`."""
    runner = make_runner(spec, store)
    slots: list[Slot] = []
    clock = SystemClock() if wall_ms is None else StandingClock(wall_ms)
    running = asyncio.ensure_future(run_graph(graph, spec, store, options, runner, False, slots, clock))
    try:
        progress, rests, unread = _Progress(ranges), 0, 0
        while not running.done():
            # Due work may take a while, and a barrier would not wait for it.
            rests = rests + 1 if all(slot.at_rest for slot in slots) else 0
            if runner.phase == "running" and progress.over() and rests >= _RESTS:
                unread = sum(1 for each in ranges.values() if isinstance(each, OpenRange) for _ in each.unread)
                runner.stop("checkpoint")
                break
            await asyncio.wait([running], timeout=_LOOK_S)
        status = await running
        troubles = raised_in(slots)
        return ReplayEnded(status, troubles[-1] if troubles else None, unread)
    finally:
        if not running.done():
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


class _Progress:
    def __init__(self, ranges: Mapping[str, ReadRange]) -> None:
        self._ranges = ranges
        self._read = -1
        self._moved_s = 0.0

    def over(self) -> bool:
        now_s, read = time.monotonic(), sum(each.total for each in self._ranges.values())
        if read != self._read or any(each.fetches for each in self._ranges.values()):
            self._read, self._moved_s = read, now_s
        if all(each.reached for each in self._ranges.values()):
            return True
        still_s = now_s - self._moved_s
        if any(isinstance(each, OpenRange) for each in self._ranges.values()):
            if still_s <= _IDLE_S:
                return False
            return still_s > _ROWS_TIMEOUT_S or not any(each.has_backlog for each in self._ranges.values())
        if still_s <= _ROWS_TIMEOUT_S:
            return False
        raise InvalidJob(
            f"the replay waits for rows that do not come (for {still_s:.0f} s now):\n  "
            + "\n  ".join(line for name, each in self._ranges.items() for line in _missing(name, each))
        )


def _missing(source: str, range: ReadRange) -> list[str]:
    lines = [
        f"source {source!r}, split {split!r}: {counted(rows, 'row')}" for split, rows in sorted(range.missing().items())
    ]
    if range.unfinished:
        lines.append(f"source {source!r}: {range.unfinished} splits that were read to their end are not found any more")
    return lines
