"""Bench for tests of keyed backends: opens, checkpoints and restores backends on real disks."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from barrier_runtime.state.backend.keyed_backend import KeyedBackend, open_keyed_backend
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.values.table import StateTable


@dataclass
class Bench:
    """Environment of one slot. Replacing `copies` drops all local copies, as on a fresh slot."""

    directory: Path
    kind: str = "rocksdb"
    store: ObjectStore = field(default_factory=MemoryStore)
    copies: LocalCopies = field(default_factory=LocalCopies)
    memory: SlotMemory = field(default_factory=lambda: SlotMemory(16 << 20))
    cache_bytes: int = 16 << 20
    token: int = 1

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._uuids = itertools.count(1)

    def open(
        self,
        restored: Sequence[OperatorSnapshot] = (),
        subtask: int = 0,
        parallelism: int = 1,
        max_parallelism: int = 128,
        operator: str = "counts",
    ) -> KeyedBackend:
        return open_keyed_backend(
            kind=self.kind,
            operator=operator,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            restored=restored,
            store=self.store,
            paths=Paths("job"),
            token=self.token,
            slot_uuid="slot",
            directory=self.directory / f"incarnation-{next(self._numbers)}",
            copies=self.copies,
            memory=self.memory,
            cache_bytes=self.cache_bytes,
            new_uuid=lambda: f"file-{next(self._uuids)}",
        )


def values(backend: KeyedBackend, name: str = "value") -> StateTable:
    """Returns a table of values of any msgpack type, keyed by one field."""
    return backend.table(name, msgspec.msgpack.encode, msgspec.msgpack.decode, 1)


def drain(backend: KeyedBackend) -> None:
    while not backend.snapshots.drain():
        pass


def checkpoint(backend: KeyedBackend, number: int) -> KeyedSnapshot:
    """Captures, drains and writes a checkpoint, without completing or aborting the checkpoint."""
    backend.snapshots.freeze(number)
    drain(backend)
    snapshot = backend.snapshots.write(number)
    backend.snapshots.clean_up()
    return snapshot


def of_operator(
    keyed: KeyedSnapshot, subtask: int = 0, parallelism: int = 1, operator: str = "counts"
) -> OperatorSnapshot:
    return OperatorSnapshot(operator, subtask, parallelism, keyed=keyed)
