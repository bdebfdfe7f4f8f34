"""An operator outside of a slot, with keyed state and snapshots; everything runs in the caller's thread.

For `write_savepoint`, and for harnesses of tests.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from barrier_runtime.operators.base import Operator, OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.state.backend.keyed_backend import KeyedBackend, open_keyed_backend
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths

_WRITTEN_AT_ONCE = 4_096  # entries


class _AtOnce:
    """Executor that runs work at once."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        done(work(), None)


def context_alone(
    job: str,
    operator: str,
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    restored: tuple[OperatorSnapshot, ...],
    *,
    store: ObjectStore,
    directory: Path,
    backend: str,
    memory_bytes: int,
    watched: bool = False,
    metrics: MetricGroup | None = None,
    make_store: Callable[[str], ObjectStore],
    call_later: Callable[[float, Callable[[], None]], None] = lambda seconds, call: None,
    **others: Any,
) -> OperatorContext:
    """Context of a subtask. `backend`, `watched`: of the keyed state; `others`: further fields of the context."""

    def open_keyed() -> KeyedBackend:
        return open_keyed_backend(
            kind=backend,
            operator=operator,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            restored=restored,
            store=store,
            paths=Paths(job),
            token=1,
            slot_uuid="alone",
            directory=directory / "state",
            copies=LocalCopies(),
            memory=SlotMemory(memory_bytes),
            cache_bytes=memory_bytes,
            new_uuid=lambda: uuid.uuid4().hex,
            watched=watched,
        )

    return OperatorContext(
        job=job,
        token=1,
        operator=operator,
        subtask=subtask,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        restored=restored,
        open_keyed=open_keyed,
        executor=_AtOnce(),
        snapshot_executor=_AtOnce(),
        metrics=metrics or MetricGroup(),
        local_dir=directory,
        make_store=make_store,
        job_store=store,
        call_later=call_later,
        wake=lambda: None,
        **others,
    )


def snapshot_of(operator: Operator, name: str, subtask: int, parallelism: int, checkpoint: int) -> OperatorSnapshot:
    """Runs all parts of a snapshot, as a slot does off the loop. `name`: of the operator."""
    capture, keyed = operator.snapshot(checkpoint), None
    if capture.keyed is not None:
        while not capture.keyed.drain(_WRITTEN_AT_ONCE):
            pass
        keyed = capture.keyed.write(checkpoint)
        capture.keyed.clean_up()
    values = dict(capture.values)
    if capture.blocking is not None:
        values.update(capture.blocking())
    if capture.parts is not None:
        values.update(capture.parts())
    return OperatorSnapshot(name, subtask, parallelism, values, keyed)
