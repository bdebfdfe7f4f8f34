"""Savepoints in a job's folder, for `fsck`: intact or damaged, and no objects of the job."""

from collections.abc import Iterator, Sequence

from barrier_runtime.coordinator.log.savepoint import SAVEPOINT_FILE, decode_savepoint, in_savepoint, object_sizes
from barrier_runtime.coordinator.maintenance.fsck import BACKUP, Damage
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectNotFound, ObjectStore


class KeptSavepoints:
    def __init__(self, store: ObjectStore, objects: Sequence[ObjectInfo]) -> None:
        """`objects`: all objects of the job in the store."""
        self._store = store
        self._sizes = {found.key: found.size for found in objects}
        self._folders = tuple(
            key.removesuffix(SAVEPOINT_FILE) for key in self._sizes if key.endswith(f"/{SAVEPOINT_FILE}")
        )
        self.notes: list[str] = []  # of savepoints that `damage` has found readable

    def has(self, key: str) -> bool:
        return any(key.startswith(each) and in_savepoint(key.removeprefix(each)) for each in self._folders)

    def damage(self) -> Iterator[Damage]:
        for folder in self._folders:
            key = folder + SAVEPOINT_FILE
            try:
                taken = decode_savepoint(key, self._store.get(key)).taken
            except ObjectNotFound:  # deleted since the listing
                continue
            except (Corrupt, InvalidJob) as error:
                yield Damage(key, "a readable savepoint", str(error), BACKUP)
                continue
            for name, size in sorted(object_sizes(taken).items()):
                there = self._sizes.get(folder + name)
                if there is None or there < size:
                    found = "nothing" if there is None else f"{there} bytes"
                    yield Damage(folder + name, f"{size} bytes, which the savepoint {folder} has", found, BACKUP)
            self.notes.append(
                f"{folder} is a savepoint of checkpoint {taken.checkpoint} of job {taken.job}: never deleted here; "
                "`barrier-runtime savepoints delete` does"
            )
