"""Explanations for `fsck` of objects in a job's folder besides the log and kept checkpoints."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from barrier_runtime.coordinator.checkpoints.retention import RetentionVerdict
from barrier_runtime.coordinator.log.savepoint import SAVEPOINT_FILE, decode_savepoint, in_savepoint, object_sizes
from barrier_runtime.coordinator.maintenance.fsck import BACKUP, Damage, LogWalk, UnreferencedObject
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectNotFound, ObjectStore
from barrier_runtime.state.store.paths import Paths


@dataclass(frozen=True)
class NamedBy:
    """A manifest out of reach that names a file."""

    checkpoint: int
    token: int
    decided: bool


def recognised(paths: Paths, key: str) -> str:
    """Returns "" for unknown objects."""
    if paths.log_position(key) is not None:
        return "a log record"
    if key in (paths.lease, paths.history, paths.log_hint):
        return "lease, history or hint of the log's end: written again and again"
    if key.startswith(paths.pins_prefix):
        return "a pin of a reader: it expires by itself"
    if key.startswith(f"{paths.probe_prefix}/"):
        return "of the probe of the store: its note, or left by a probe that was interrupted; harmless"
    if paths.staged_rows_origin(key) is not None or paths.delivery_of(key) is not None:
        return "rows of a write-ahead sink, or its note of what was delivered: the sink deletes them"
    if paths.asked_of(key) is not None:
        return "a batch that waits for the function of for_each_batch: the sink deletes it"
    if paths.is_staged_source(key):
        return "rows of a source, staged before the job started: deleted when it has finished"
    return ""


def explained(
    paths: Paths, found: ObjectInfo, verdict: RetentionVerdict, walk: LogWalk, decided: bool, named_by: NamedBy | None
) -> UnreferencedObject | None:
    """Returns None if the object is needed. `decided`: the log decided the manifest."""
    if verdict is RetentionVerdict.NEEDED:
        return None
    if verdict is RetentionVerdict.NOT_OURS:
        return UnreferencedObject(
            found.key, found.size, "unknown", "not a name that a job gives to its objects: never deleted"
        )
    checkpoint = paths.checkpoint_of(found.key)
    if checkpoint is not None:
        what = f"manifest of checkpoint {checkpoint[0]} of generation {checkpoint[1]}, "
        what += _dropped(walk) if decided else "which was never decided"
    elif named_by is None:
        what = f"upload of generation {paths.data_token(found.key)} that no retained checkpoint names"
    elif named_by.decided:
        what = f"file of checkpoint {named_by.checkpoint} of generation {named_by.token}, {_dropped(walk)}"
    else:
        what = f"upload for checkpoint {named_by.checkpoint} of generation {named_by.token}, which was never decided"
    if verdict is RetentionVerdict.ORPHAN:
        return UnreferencedObject(found.key, found.size, "orphan", what)
    if verdict is RetentionVerdict.YOUNG:
        return UnreferencedObject(found.key, found.size, "kept", f"{what}; younger than the minimum age")
    return UnreferencedObject(
        found.key,
        found.size,
        "kept",
        f"{what}; of the newest generation: who leads it may need it, and sweeps it if not",
    )


def staged_rows_left(paths: Paths, found: ObjectInfo, walk: LogWalk) -> UnreferencedObject | None:
    """Only the sink knows which staged rows are undelivered, so none are orphans."""
    origin = paths.staged_rows_origin(found.key)
    if origin is None or origin[0] >= walk.token:
        return None
    what = (
        f"rows staged by generation {origin[0]}, subtask {origin[1]}, of a write-ahead sink: decided and not delivered "
        "yet, or never decided; the sink delivers or deletes them when it starts"
    )
    return UnreferencedObject(found.key, found.size, "kept", what)


def _dropped(walk: LogWalk) -> str:
    if walk.newest is None:
        return "which was complete and is discarded"
    return f"which was complete and is dropped (the job retains {walk.retained})"


class KeptSavepoints:
    """Savepoints in a job's folder, which are no objects of the job."""

    def __init__(self, store: ObjectStore, objects: Sequence[ObjectInfo]) -> None:
        self._store = store
        self._sizes = {found.key: found.size for found in objects}
        self._folders = tuple(
            key.removesuffix(SAVEPOINT_FILE) for key in self._sizes if key.endswith(f"/{SAVEPOINT_FILE}")
        )
        self.notes: list[str] = []

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
