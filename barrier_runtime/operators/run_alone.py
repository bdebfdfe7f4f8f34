"""An operator outside of a slot, for `write_savepoint` and harnesses of tests."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
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

_WRITTEN_AT_ONCE = 4_096


class _AtOnce:
    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        done(work(), None)


@dataclass(frozen=True)
class OperatorAlone:
    job: str
    operator: str
    parallelism: int
    max_parallelism: int
    restored: tuple[OperatorSnapshot, ...]
    store: ObjectStore
    directory: Path
    backend: str
    memory_bytes: int
    watched: bool = False

    def context(self, subtask: int, make_store: Callable[[str], ObjectStore], **others: Any) -> OperatorContext:
        directory = self.directory / str(subtask)
        fields: dict[str, Any] = {
            "executor": _AtOnce(),
            "snapshot_executor": _AtOnce(),
            "metrics": MetricGroup(),
            "call_later": lambda seconds, call: None,
            "wake": lambda: None,
            **others,
        }
        return OperatorContext(
            job=self.job,
            token=1,
            operator=self.operator,
            subtask=subtask,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            restored=self.restored,
            open_keyed=lambda: self._opened(subtask, directory),
            local_dir=directory,
            make_store=make_store,
            job_store=self.store,
            **fields,
        )

    def _opened(self, subtask: int, directory: Path) -> KeyedBackend:
        return open_keyed_backend(
            kind=self.backend,
            operator=self.operator,
            subtask=subtask,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            restored=self.restored,
            store=self.store,
            paths=Paths(self.job),
            token=1,
            slot_uuid="alone",
            directory=directory / "state",
            copies=LocalCopies(),
            memory=SlotMemory(self.memory_bytes),
            cache_bytes=self.memory_bytes,
            new_uuid=lambda: uuid.uuid4().hex,
            watched=self.watched,
        )


def snapshot_of(operator: Operator, name: str, subtask: int, parallelism: int, checkpoint: int) -> OperatorSnapshot:
    """Takes and writes a snapshot, as a slot does off the loop."""
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
