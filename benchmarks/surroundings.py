"""Surroundings of an operator outside a slot: state in RocksDB, snapshots to a folder, immediate work."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.state.backend.keyed_backend import KeyedBackend, open_keyed_backend
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.paths import Paths

_MAX_PARALLELISM = 128


class _InlineExecutor:
    """Does the work at once."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        done(work(), None)


class Surroundings:
    """Surroundings of a slot, with a run's default settings."""

    def __init__(self, folder: Path, subtask: int, parallelism: int) -> None:
        self._folder = folder / f"slot-{subtask}"
        self._subtask = subtask
        self._parallelism = parallelism
        self.store = LocalStore(folder / "store")
        self.copies = LocalCopies()
        self._memory = SlotMemory(256 << 20)
        self._numbers = itertools.count(1)

    def context(self, operator: str) -> OperatorContext:
        directory = self._folder / operator
        directory.mkdir(parents=True)

        def open_keyed() -> KeyedBackend:
            return open_keyed_backend(
                kind="rocksdb",
                operator=operator,
                subtask=self._subtask,
                parallelism=self._parallelism,
                max_parallelism=_MAX_PARALLELISM,
                restored=(),
                store=self.store,
                paths=Paths("bench"),
                token=1,
                slot_uuid=f"slot-{self._subtask}",
                directory=directory,
                copies=self.copies,
                memory=self._memory,
                cache_bytes=64 << 20,
                new_uuid=lambda: f"file-{next(self._numbers)}",
            )

        return OperatorContext(
            job="bench",
            token=1,
            operator=operator,
            subtask=self._subtask,
            parallelism=self._parallelism,
            max_parallelism=_MAX_PARALLELISM,
            restored=(),
            open_keyed=open_keyed,
            executor=_InlineExecutor(),
            snapshot_executor=_InlineExecutor(),
            metrics=MetricGroup(),
            local_dir=directory,
            make_store=lambda url: self.store,
            job_store=self.store,
            call_later=lambda seconds, callback: callback(),
            wake=lambda: None,
        )
