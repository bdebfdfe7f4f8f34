"""Log of a Delta table, for the only writer of a job: reads, creates and appends. Blocking.

Every commit carries the format's application transaction (`txn`: job, sink, lineage; checkpoint), without a time, so
that the transaction never expires.

delta-rs lets two writers *create* a table at once and keeps the rows of both, so this module creates an empty table by
a put-if-absent of the first log record.
"""

import contextlib
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from barrier_runtime.connectors.delta.committable import DeltaCommittable, DeltaFile
from barrier_runtime.connectors.delta.library import (
    brief,
    is_refused,
    library_url,
    load_deltalake,
    storage_options,
    trouble,
)
from barrier_runtime.connectors.delta.log_records import append_record, create_record, log_key
from barrier_runtime.connectors.delta.schema import DeltaTableFacts, DeltaType
from barrier_runtime.state.errors import PERMANENT, BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, PutOutcome

log = logging.getLogger("barrier_runtime.sinks")

_ATTEMPTS = 6  # at a version
_RACES = 200  # at all versions
_CHECKPOINT_EVERY = 100  # versions
_AGE_TO_CHECK_MS = 10 * 60 * 1000  # a vacuum may have deleted older files
_UNSYNCED = 200  # commits: more than lie between two checkpoints of the log
_APPENDABLE = {  # features that new files cannot violate, or whose use is checked
    *("appendOnly", "invariants", "timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"),
    *("changeDataFeed", "checkConstraints", "generatedColumns", "columnMapping", "identityColumns"),
}
Change: TypeAlias = tuple[dict[str, int], Callable[[], None]]  # checkpoints by application; commit
_NOTHING_KNOWN: tuple[int, dict[str, int]] = (-1, {})


class DeltaLog:
    """Log of the table at `url`; `store` has the same place as objects."""

    def __init__(self, url: str, store: ObjectStore, where: str) -> None:
        self._library = load_deltalake(where, "DeltaSink")
        self._store = store
        self._where = where
        self._is_local = store.url.startswith("file://")
        self._options = storage_options(url)
        self._table: Any = None
        self._synced = -1  # newest version that survives a power cut
        self._known = _NOTHING_KNOWN  # version, and its highest checkpoints by application
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="delta-log")
        self._reading: Future[None] | None = None
        self._head: _OwnCommit | None = None  # own last commit, if none is known to follow
        self._put = b""  # digest of the last record put
        self._last_own = -1
        self._compacted: set[int] = set()  # versions since the own last commit
        self._seen: DeltaTableFacts | None = None  # that the running commit had to fit
        self._mark: tuple[int, bytes] = (-1, b"")  # version last read, and its `_mark_of`

    def existing(self) -> DeltaTableFacts | None:
        """Facts of the table, or None. Raises `InvalidJob` if appends would break the table."""
        table = self._newest()
        return None if table is None else self.facts(table)

    def has(self, committable: DeltaCommittable) -> bool:
        return self.has_checkpoint(committable.application, committable.checkpoint)

    def has_checkpoint(self, application: str, checkpoint: int) -> bool:
        return checkpoint <= self.committed(application)

    def committed(self, application: str) -> int:
        table = self._newest()
        return 0 if table is None else self._committed(table, application)

    def commit(
        self,
        pending: Sequence[DeltaCommittable],
        shown: Callable[[Sequence[DeltaCommittable]], Sequence[DeltaFile]] | None = None,
    ) -> None:
        """Adds the files of all committables that the table lacks. Idempotent.

        `shown` gives files final names and returns them; None: the files have final names.
        """

        def change(table: Any) -> Change | None:
            new = [each for each in pending if each.checkpoint > self._committed(table, each.application)]
            if not new:
                return None
            facts = self.facts(table)
            for each in new:
                facts.check(each.fields, each.partition_by, self._where)
            files = [each for committable in new for each in committable.files]
            if shown is None:
                self._check_there(files)
            added = files if shown is None else shown(new)
            self._seen = facts
            return _highest(new), lambda: self._append(int(table.version()) + 1, facts, added, _highest(new))

        if pending and not self._commit_on_own(pending, shown):
            self._until_done(pending[-1].fields, pending[-1].partition_by, change)

    def _commit_on_own(
        self,
        pending: Sequence[DeltaCommittable],
        shown: Callable[[Sequence[DeltaCommittable]], Sequence[DeltaFile]] | None,
    ) -> bool:
        """Commits on top of the own last commit without a read. False: the table must be read."""
        head, self._head = self._head, None
        if head is None or any(each.application not in head.known for each in pending):
            return False
        new = [each for each in pending if each.checkpoint > head.known[each.application]]
        for each in new:
            head.facts.check(each.fields, each.partition_by, self._where)
        files = [each for committable in new for each in committable.files]
        if new:
            if self._is_anew(head.version, head.mark):
                return False
            if shown is None:
                self._check_there(files)
            added = shown(new) if shown else files
            version = self._next_version(head.version)
            try:
                self._append(version, head.facts, added, _highest(new))
            except Unavailable:
                return False
            self._appended(version, head.facts, {**head.known, **_highest(new)})
        else:
            self._head = head
        return True

    def merge(self, merging: "Merging") -> None:
        """Replaces, adds and deletes rows in one commit, unless the table has this checkpoint. Idempotent."""

        def change(table: Any) -> Change | None:
            after = self._committed(table, merging.application)
            if merging.checkpoint <= after:
                return None
            facts = self.facts(table)
            facts.check(merging.fields, merging.partition_by, self._where)
            facts.check_replacing(self._where)
            done = {merging.application: merging.checkpoint}
            return done, lambda: merging.execute(table, after, self._transaction(done))

        self._until_done(merging.fields, merging.partition_by, change, data=True)

    def _until_done(
        self,
        fields: Mapping[str, DeltaType],
        partition_by: Sequence[str],
        change: Callable[[Any], Change | None],
        *,
        data: bool = False,
    ) -> None:
        """Creates a missing table; repeats `change` until done. `data`: delta-rs writes the data files."""
        failed: BaseException | None = None
        tried: Counter[int] = Counter()
        while tried.total() < _RACES and max(tried.values(), default=0) < _ATTEMPTS:
            table = self._newest()
            version: int = -1 if table is None else table.version()
            tried[version] += 1
            if table is None:
                self._create(fields, partition_by)
                continue
            planned = change(table)
            if planned is None:
                self._sync(version, data)
                return
            done, execute = planned
            try:
                execute()
            except PERMANENT:
                raise
            except Exception as error:  # conflict, refusal or unknown result: read again
                failed = error
                self._forget()
                if is_refused(error):
                    said = f"{self._where}: nothing could be committed to the table {self._store.url}"
                    raise trouble(error, said) from error
            else:
                self._known = (version + 1, {**self._known[1], **done})
                if data and self._is_local:
                    continue  # the next turn syncs to the disk
                if not data:
                    assert self._seen is not None, "a commit without the facts that it has to fit"
                    self._appended(version + 1, self._seen, self._known[1])
                return
        raise Unavailable(
            f"{self._where}: nothing could be committed to the table {self._store.url} in {tried.total()} attempts "
            f"({brief(failed) if failed else 'it vanished each time'}); it is tried again"
        ) from failed

    def _newest(self) -> Any:
        if self._reading is not None:
            self._reading.result()
            self._reading = None
        return self._newest_now()

    def _newest_now(self) -> Any:
        if self._table is not None:
            self._is_anew(*self._mark)
        try:
            if self._table is None:
                self._table = self._load()
            else:
                self._table.update_incremental()
        except self._library.exceptions.TableNotFoundError:
            self._forget()
        except Exception as error:
            self._forget()
            raise self._unreadable(error) from error
        if self._table is not None and self._table.version() != self._mark[0]:
            self._mark = self._table.version(), self._mark_of(self._table.version())
        return self._table

    def _is_anew(self, version: int, mark: bytes) -> bool:
        """Forgets the table if `version` has another record: delta-rs would add new versions to the old table."""
        if self._mark_of(version) == mark:
            return False
        what = f"version {version} of the table {self._store.url}"
        log.warning("%s: %s is another, or gone: the table is read anew", self._where, what)
        self._forget()
        self._synced = self._last_own = -1
        self._compacted.clear()
        return True

    def _mark_of(self, version: int) -> bytes:
        try:
            return _digest(self._store.get(log_key(version)))
        except ObjectNotFound:
            return b""

    def _load(self) -> Any:
        return self._library.DeltaTable(library_url(self._store), storage_options=self._options)

    def loaded(self) -> Any:
        """Library's table as of now, or None. For threads that do not commit."""
        try:
            return self._load()
        except self._library.exceptions.TableNotFoundError:
            return None
        except Exception as error:
            raise self._unreadable(error) from error

    def compacted(self, version: int) -> None:
        """Records a compaction, which the next commit skips. Any thread."""
        self._compacted.add(version)

    def _next_version(self, version: int) -> int:
        after = version + 1
        while after in self._compacted:
            self._compacted.discard(after)
            after += 1
        return after

    def _appended(self, version: int, facts: DeltaTableFacts, known: Mapping[str, int]) -> None:
        self._sync(version, data=False)
        self._head = _OwnCommit(version, facts, dict(known), self._put)
        for behind in [each for each in tuple(self._compacted) if each < version]:
            self._compacted.discard(behind)
        last, self._last_own = self._last_own, version
        passed = version // _CHECKPOINT_EVERY > last // _CHECKPOINT_EVERY >= 0
        due = version % _CHECKPOINT_EVERY == 0 or passed
        if due and (self._reading is None or self._reading.done()):
            with contextlib.suppress(RuntimeError):  # a commit may outlive the closed sink
                self._reading = self._threads.submit(self._clean_up)

    def _clean_up(self) -> None:
        with contextlib.suppress(BarrierRuntimeError):
            table = self._newest_now()
            if table is not None:
                with contextlib.suppress(Exception):
                    table.create_checkpoint()
                    table.cleanup_metadata()

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _forget(self) -> None:
        self._table, self._known, self._mark = None, _NOTHING_KNOWN, (-1, b"")

    def _committed(self, table: Any, application: str) -> int:
        """Highest checkpoint, cached: delta-rs reads the whole log."""
        version: int = table.version()
        if self._known[0] != version:
            self._known = (version, {})
        known = self._known[1]
        if application not in known:
            try:
                known[application] = table.transaction_version(application) or 0
            except Exception as error:
                self._forget()
                raise self._unreadable(error) from error
        return known[application]

    def _unreadable(self, error: Exception) -> BarrierRuntimeError:
        return trouble(error, f"{self._where}: the table {self._store.url} could not be read")

    def facts(self, table: Any) -> DeltaTableFacts:
        """Raises `InvalidJob` for rules of the table that this sink cannot keep. Any thread."""
        metadata = table.metadata()
        fields = msgspec.json.decode(table.schema().to_json())["fields"]
        features = set(table.protocol().writer_features or ())
        used = sorted(features - _APPENDABLE)
        settings = dict(metadata.configuration)
        used += [key for key in settings if key.startswith("delta.constraints.")]
        if settings.get("delta.columnMapping.mode", "none") != "none":
            used.append("delta.columnMapping.mode")
        rules = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
        used += [f"{key} of column {field['name']}" for field in fields for key in field["metadata"] if key in rules]
        if used:
            raise InvalidJob(
                f"{self._where}: the table {self._store.url} has {', '.join(used)}, which this sink cannot keep: write "
                "to a table without, and merge from there"
            )
        return DeltaTableFacts(self._store.url, tuple(metadata.partition_columns), fields, settings, features)

    def _create(self, fields: Mapping[str, DeltaType], partition_by: Sequence[str]) -> None:
        record = create_record(fields, partition_by, time.time_ns() // 1_000_000)
        if self._store.put_if_absent(log_key(0), record) is PutOutcome.UNKNOWN:
            raise Unavailable(f"{self._where}: nobody knows whether {self._store.url}/{log_key(0)} was written")

    def _append(
        self, version: int, facts: DeltaTableFacts, files: Sequence[DeltaFile], checkpoints: Mapping[str, int]
    ) -> None:
        """Puts a record if the version is free. delta-rs would need more requests."""
        record = append_record(files, checkpoints, facts.partition_by, time.time_ns() // 1_000_000)
        self._put = _digest(record)
        outcome = self._store.put_if_absent(log_key(version), record)
        if outcome is PutOutcome.EXISTS:
            raise Unavailable(f"somebody else has written version {version}")
        if outcome is PutOutcome.UNKNOWN:
            raise Unavailable(f"nobody knows whether version {version} was written")

    def _transaction(self, checkpoints: Mapping[str, int]) -> Any:
        return self._library.CommitProperties(
            app_transactions=[self._library.Transaction(*each) for each in checkpoints.items()]
        )

    def _check_there(self, files: Sequence[DeltaFile]) -> None:
        """Raises `Corrupt` if files are gone. Skips files too young for a vacuum."""
        young_ms = time.time_ns() // 1_000_000 - _AGE_TO_CHECK_MS
        names = [each.file.final for each in files if each.written_ms < young_ms]
        with ThreadPoolExecutor(max_workers=8) as asking:
            gone = [name for name, there in zip(names, asking.map(self._is_there, names), strict=True) if not there]
        if gone:
            raise Corrupt(
                f"{self._where}: decided files are gone from the table {self._store.url}: {', '.join(gone[:5])}"
                f"{' and others' if len(gone) > 5 else ''}. Was a vacuum run with a retention shorter than the outage? "
                "Put them back; the commit is tried again"
            )

    def _is_there(self, name: str) -> bool:
        try:
            return bool(self._store.get(name, 0, 1))
        except ObjectNotFound:
            return False

    def _sync(self, version: int, data: bool) -> None:
        """Syncs records of the log and, with `data`, the data files, which delta-rs does not sync."""
        if not self._is_local or version <= self._synced:
            return
        table = Path(unquote(urlsplit(self._store.url).path))
        folder = table / "_delta_log"
        first = max(self._synced + 1, version - _UNSYNCED)
        records = [folder / Path(log_key(number)).name for number in range(first, version + 1)]
        if data:
            added = [table / name for record in records for name in _added(record)]
            for path in [*added, *{path.parent for path in added}]:
                _synced(path)
        for path in [*records, folder]:
            _synced(path)
        self._synced = version


def _added(record: Path) -> list[str]:
    try:
        lines = record.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    actions = [msgspec.json.decode(line) for line in lines if line]
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def _synced(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _OwnCommit:
    """`known`: highest checkpoint of each application. `mark`: digest of the record."""

    version: int
    facts: DeltaTableFacts
    known: dict[str, int]
    mark: bytes


def _digest(record: bytes) -> bytes:
    return hashlib.blake2b(record, digest_size=16).digest()


class Merging(Protocol):
    @property
    def application(self) -> str: ...

    @property
    def checkpoint(self) -> int: ...

    @property
    def fields(self) -> Mapping[str, DeltaType]: ...

    @property
    def partition_by(self) -> Sequence[str]: ...

    def execute(self, table: Any, after: int, properties: Any) -> None:
        """Commits all rows after checkpoint `after`, on top of the loaded version."""
        ...


def _highest(committables: Sequence[DeltaCommittable]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for each in committables:
        highest[each.application] = max(each.checkpoint, highest.get(each.application, 0))
    return highest
