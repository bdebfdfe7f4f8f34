"""`write_savepoint`: makes a savepoint from DataFrames, or replaces some states of a savepoint.

    open each operator, per subtask ─► replace its states ─► snapshot to a folder of this machine ─► savepoint.json last

Unedited operators of `base`, sources included, are copied file by file, unread.
"""

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain as joined
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from barrier_runtime.bootstrap.filling import StateFilling, key_fields_of
from barrier_runtime.connectors.source import Source, Split
from barrier_runtime.coordinator.log.kinds import changed_kind, with_kinds
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.savepoint import Savepoint, object_sizes, with_keys
from barrier_runtime.coordinator.savepoint_files import check_whole, make_savepoint, read_savepoint
from barrier_runtime.coordinator.wire.messages import CheckpointOptions
from barrier_runtime.data.plain_rows import PlainRows
from barrier_runtime.data.schemas import no_rows
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import JobGraph, place_of
from barrier_runtime.graph.logical import Plan
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.operators.keyed.progress import VALUE as PROGRESS
from barrier_runtime.operators.keyed.progress import timers_unknown
from barrier_runtime.operators.run_alone import OperatorAlone, snapshot_of
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.scratch import scratch_folder
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import with_values
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.read_only import LinkedStore

_MEMORY = 256 << 20
_READS_AT_ONCE = 8
_CHECKPOINT = 1  # number in a savepoint without `base`


class BootstrappedFlow(Protocol):
    plan: Plan


@dataclass(frozen=True)
class SavepointWritten:
    """A written savepoint.

    `bytes`: size of the files. `entries`: number of stored entries by (step, state)."""

    url: str
    bytes: int
    entries: Mapping[tuple[str, str], int]


def write_savepoint(
    url: str,
    *,
    flow: BootstrappedFlow,
    states: Mapping[tuple[str, str], Any],
    base: str | None = None,
    parallelism: int = 2,
    max_parallelism: int = 128,
) -> SavepointWritten:
    """Writes a savepoint to `url`, with which `flow` begins: `flow.run(…, restore=url)`.

    `states`: (step, state) -> a DataFrame of pandas, Polars, PyArrow or Spark, or a `RecordBatchReader`, with the
    columns of `open_checkpoint(…).table(step, state)`. Of rows with equal keys (in maps: equal entries) the last is
    stored; a list needs positions 0, 1, 2, …, each once. `base`: a savepoint, from which all other states are copied.
    Without `base` other states are empty, and sources begin where the flow says. `parallelism`: number of parts of the
    savepoint; a job may have any parallelism.

    Raises `InvalidJob` for steps and states that the flow lacks, and for columns of other names or types."""
    if not isinstance(getattr(flow, "plan", None), Plan):
        raise InvalidJob(f"write_savepoint: flow={flow!r} is no Dataflow: give the flow that begins with the savepoint")
    savepoint = None if base is None else read_savepoint(base)
    if savepoint is not None and base is not None:
        check_whole(base, savepoint)
        parallelism, max_parallelism = savepoint.taken.parallelism, savepoint.taken.max_parallelism
    graph = compile_plan(
        flow.plan, parallelism, max_parallelism, mode="at_least_once", list_splits=_no_splits, sinks_run=False
    )
    steps: dict[str, dict[str, Any]] = {}
    for place, frame in states.items():
        if not isinstance(place, tuple) or len(place) != 2:
            raise InvalidJob(f'states={{{place!r}: …}} names no state: write ("step", "state"): a DataFrame')
        step, state = place
        steps.setdefault(step, {})[state] = frame
    with scratch_folder("barrier-runtime-savepoint-") as folder:
        scratch = LocalStore(folder / "files")
        store = LinkedStore(scratch, scratch if base is None else open_existing_store(base))
        taken = None
        if savepoint is not None:
            links = {key: f"base/{key}" for key in object_sizes(savepoint.taken)}
            store.link(links)
            operators = tuple(with_keys(each, links) for each in savepoint.taken.operators)
            taken = msgspec.structs.replace(savepoint.taken, operators=operators)
        made: list[OperatorSnapshot] = []
        entries: dict[tuple[str, str], int] = {}
        for number, (step, frames) in enumerate(steps.items()):
            before = () if taken is None else tuple(each for each in taken.operators if each.operator == step)
            _check_kind(graph, before)
            filled = _Filled(graph, step, frames, before, store, folder / f"step-{number}")
            made += with_kinds(graph.chain_specs(), filled.snapshots)
            entries.update({(step, state): found for state, found in filled.entries.items()})
        kept = () if taken is None else tuple(each for each in taken.operators if each.operator not in steps)
        manifest = _manifest(graph, taken, (*kept, *made))
        size = _copied(url, manifest, store, scratch, base)
    return SavepointWritten(url, size, entries)


def _check_kind(graph: JobGraph, before: tuple[OperatorSnapshot, ...]) -> None:
    for snapshot in before:
        another = changed_kind(graph.chain_specs(), snapshot)
        if another is not None:
            raise InvalidJob(another.refusal("the savepoint that is changed", snapshot.operator))


def _no_splits(source: Source, parallelism: int) -> Sequence[Split]:
    return [Split("none")]


def _manifest(graph: JobGraph, base: Manifest | None, operators: tuple[OperatorSnapshot, ...]) -> Manifest:
    now_ms = time.time_ns() // 1_000_000
    if base is not None:
        return msgspec.structs.replace(base, operators=operators, created_wall_ms=now_ms)
    return Manifest(
        job=graph.name,
        lineage=uuid.uuid4().hex,
        checkpoint=_CHECKPOINT,
        token=1,
        created_wall_ms=now_ms,
        parallelism=graph.parallelism,
        max_parallelism=graph.max_parallelism,
        operators=operators,
        parent_position=0,
        parent_sha256="",
        options=CheckpointOptions(),
    )


def _copied(url: str, manifest: Manifest, store: LinkedStore, scratch: ObjectStore, base: str | None) -> int:
    """Copies the objects; objects of `base` within their store, if possible."""
    id = uuid.uuid4().hex
    objects = {
        key: f"data/{manifest.checkpoint}-{manifest.token}-{id}/{number}"
        for number, key in enumerate(sorted(object_sizes(manifest)), 1)
    }
    taken = msgspec.structs.replace(manifest, operators=tuple(with_keys(each, objects) for each in manifest.operators))
    prefix = "base/"
    of_base = {key.removeprefix(prefix): to for key, to in objects.items() if key.startswith(prefix)}
    own = {key: to for key, to in objects.items() if not key.startswith(prefix)}
    parts: list[tuple[ObjectStore, Mapping[str, str]]] = [(scratch, own)]
    if base is not None:
        parts.append((open_existing_store(base), of_base))
    return make_savepoint(url, Savepoint(id=id, taken=taken), parts)


class _Filled:
    def __init__(
        self,
        graph: JobGraph,
        step: str,
        frames: Mapping[str, Any],
        before: tuple[OperatorSnapshot, ...],
        store: ObjectStore,
        directory: Path,
    ) -> None:
        self._graph = graph
        self._step = step
        self._store = store
        self._directory = directory
        self._before = tuple(with_values(store, before, _READS_AT_ONCE))
        self.entries: dict[str, int] = {}
        place = place_of(graph, step)
        spec = place.chain.operators[place.place]
        with ExitStack() as opened:
            operators = [self._opened(spec.make(), subtask, opened) for subtask in range(graph.parallelism)]
            for state, frame in frames.items():
                self._fill(operators, state, frame)
            self.snapshots = [self._snapshot(operator, subtask) for subtask, operator in enumerate(operators)]

    def _opened(self, operator: Any, subtask: int, opened: ExitStack) -> KeyedOperator:
        if not isinstance(operator, KeyedOperator):
            raise InvalidJob(f"step {self._step!r} keeps no state by key that could be written: name another one")
        operator.made_of_tables = True
        operator.open(self._context(subtask))
        opened.callback(operator.close)
        return operator

    def _fill(self, operators: Sequence[KeyedOperator], state: str, frame: Any) -> None:
        where = f"state {self._step}.{state}"
        batches = batches_of(frame, where)
        first = next(batches)
        keys = key_fields_of(first, operators[0].state_keys, where)
        if not first.num_rows and any(pa.types.is_null(field.type) for field in keys):
            raise InvalidJob(
                f"{where}: its DataFrame has no rows, so its types are not known: give them, or leave it out"
            )
        for operator in operators:
            operator.bind_without_rows(keys)
        filling = StateFilling(operators, state, operators[0].key_schema, where)
        if self._before:
            filling.drop()
        for batch in joined([first], batches):
            filling.add(batch)
        self.entries[state] = filling.finish()

    def _snapshot(self, operator: KeyedOperator, subtask: int) -> OperatorSnapshot:
        taken = snapshot_of(operator, self._step, subtask, self._graph.parallelism, _CHECKPOINT)
        if PROGRESS in taken.values:
            taken.values[PROGRESS] = timers_unknown(taken.values[PROGRESS])
        return taken

    def _context(self, subtask: int) -> OperatorContext:
        graph = self._graph
        alone = OperatorAlone(
            *(graph.name, self._step, graph.parallelism, graph.max_parallelism, self._before, self._store),
            directory=self._directory,
            backend="rocksdb",
            memory_bytes=_MEMORY,
        )
        return alone.context(subtask, open_existing_store)


BATCH_ROWS = 65_536


def batches_of(frame: Any, where: str) -> Iterator[pa.RecordBatch]:
    """Rows with plain column types. Raises `InvalidJob` unless `frame` is a table."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return map(_plain, frame.to_batches(max_chunksize=BATCH_ROWS) or [no_rows(frame.schema)])
    if isinstance(frame, pa.RecordBatchReader):
        batches = itertools.chain([no_rows(frame.schema)], frame)  # for the types, if there are no rows
        return (part for batch in batches for part in batches_of(pa.Table.from_batches([batch]), where))
    module = type(frame).__module__.partition(".")[0]
    if module == "pandas":
        return batches_of(pa.Table.from_pandas(frame, preserve_index=False), where)
    if module == "pyspark" and hasattr(frame, "toArrow"):
        return batches_of(frame.toArrow(), where)
    if hasattr(frame, "__arrow_c_stream__"):
        return batches_of(pa.RecordBatchReader.from_stream(frame), where)
    if hasattr(frame, "to_arrow"):
        return batches_of(frame.to_arrow(), where)
    raise InvalidJob(
        f"{where}: {type(frame).__name__} is no DataFrame: give one of pandas, Polars, PyArrow or Spark, or a "
        "RecordBatchReader for what does not fit in memory"
    )


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch = PlainRows()(batch)
    fields = [field.with_type(_narrow(field.type)) for field in batch.schema]
    schema = pa.schema(fields)
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_narrow(kind.value_type))
    return kind
