"""The log of one Delta table, as its only writer of a job sees it: looked at, created, appended to. Blocking.

Every commit carries the format's own application transaction (`txn`: our lineage, the checkpoint), so the table itself
knows what was committed. A commit reads the table's version of it and is conditional on nobody having written that
transaction since: delta-rs refuses it as a conflict. After any failure the table is read again and asked.

delta-rs lets two writers *create* a table with rows at once and keeps both. So an empty table is created here, by one
put-if-absent of the first log record, and rows only ever come as appends. The markers have no time of their own, and
such never expire (`delta.setTransactionRetentionDuration` removes only those that have).
"""

import contextlib
import os
import time
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
from barrier_runtime.connectors.delta.schema import DeltaType
from barrier_runtime.connectors.delta.table_facts import DeltaTableFacts
from barrier_runtime.state.errors import PERMANENT, BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, PutOutcome

_ATTEMPTS = 6
_CHECKPOINT_EVERY = 100  # versions, as delta-rs has it
_AGE_TO_CHECK_MS = 10 * 60 * 1000  # since a file was written: a vacuum may have taken older ones
_UNSYNCED = 200  # commits that a predecessor may have left unsynced: more than lie between two of the log's checkpoints
_APPENDABLE = {  # features of a table that whole new files cannot violate, or whose use is looked for
    *("appendOnly", "invariants", "timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"),
    *("changeDataFeed", "checkConstraints", "generatedColumns", "columnMapping", "identityColumns"),
}
Change: TypeAlias = tuple[dict[str, int], Callable[[], None]]  # applications' checkpoints that it commits; makes it
_NOTHING_KNOWN: tuple[int, dict[str, int]] = (-1, {})


class DeltaLog:
    """`url` may carry `?endpoint=`; `store` is the same place as objects."""

    def __init__(self, url: str, store: ObjectStore, where: str) -> None:
        self._library = load_deltalake(where, "DeltaSink")
        self._store = store
        self._where = where
        self._is_local = store.url.startswith("file://")
        self._options = storage_options(url)
        self._table: Any = None  # the newest that was seen; None: load it
        self._synced = -1  # version up to which the log is known to survive a power cut
        self._known = _NOTHING_KNOWN  # of this version: applications' highest checkpoints
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="delta-log")
        self._reading: Future[None] | None = None  # a checkpoint of the log is made
        self._head: _OwnCommit | None = None  # our last commit, if nobody is known to have written since
        self._last_own = -1  # version of our last commit
        self._compacted: set[int] = set()  # versions by this process that nobody has gone behind yet
        self._seen: DeltaTableFacts | None = None  # what the commit under way had to fit

    def existing(self) -> DeltaTableFacts | None:
        """What is there; None when there is no table. Raises `InvalidJob` for a table that must not be appended to."""
        table = self._newest()
        return None if table is None else self.facts(table)

    def has(self, committable: DeltaCommittable) -> bool:
        """Was it made part of the table? Whatever became of the files since."""
        return self.has_checkpoint(committable.application, committable.checkpoint)

    def has_checkpoint(self, application: str, checkpoint: int) -> bool:
        return checkpoint <= self.committed(application)

    def committed(self, application: str) -> int:
        """The highest checkpoint of this application that the table has; 0 when it has none."""
        table = self._newest()
        return 0 if table is None else self._committed(table, application)

    def commit(
        self,
        pending: Sequence[DeltaCommittable],
        shown: Callable[[Sequence[DeltaCommittable]], Sequence[DeltaFile]] | None = None,
    ) -> None:
        """Make the files of all of these part of the table at once, except for what it has already. `shown`: brings
        the rows of some of these under the final names that it returns; None: they are there. Idempotent."""

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
        """Commit on top of our own last commit without a look at the table: whatever somebody else has written since
        has taken the version. False: look."""
        head, self._head = self._head, None
        if head is None or any(each.application not in head.known for each in pending):
            return False
        new = [each for each in pending if each.checkpoint > head.known[each.application]]
        for each in new:
            head.facts.check(each.fields, each.partition_by, self._where)
        files = [each for committable in new for each in committable.files]
        if new:
            if shown is None:
                self._check_there(files)
            added = shown(new) if shown else files
            version = self._behind(head.version)
            try:
                self._append(version, head.facts, added, _highest(new))
            except Unavailable:
                return False
            self._appended(version, head.facts, {**head.known, **_highest(new)})
        else:
            self._head = head
        return True

    def merge(self, merging: "Merging") -> None:
        """Replace, add and delete rows in one commit, unless the table has this checkpoint already. Idempotent."""

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
        """Make the table if there is none, and change it until there is nothing left to change. `data`: delta-rs
        writes the data files itself."""
        failed: BaseException | None = None
        for _ in range(_ATTEMPTS):
            table = self._newest()
            if table is None:
                self._create(fields, partition_by)
                continue
            version: int = table.version()
            planned = change(table)
            if planned is None:
                self._sync(version, data)
                return
            done, execute = planned
            try:
                execute()
            except PERMANENT:
                raise
            except Exception as error:  # lost against another, refused, or nobody knows: look again
                failed = error
                self._forget()
                if is_refused(error):
                    said = f"{self._where}: nothing could be committed to the table {self._store.url}"
                    raise trouble(error, said) from error
            else:  # in the next version at the earliest; if it is that one, nobody else came between
                self._known = (version + 1, {**self._known[1], **done})
                if data and self._is_local:
                    continue  # to see what has to be brought to the disk
                if not data:
                    assert self._seen is not None, "a commit without the facts that it has to fit"
                    self._appended(version + 1, self._seen, self._known[1])
                return
        raise Unavailable(
            f"{self._where}: nothing could be committed to the table {self._store.url} in {_ATTEMPTS} attempts "
            f"({brief(failed) if failed else 'it vanished each time'}); it is tried again"
        ) from failed

    # ------------------------------------------------------------ the table

    def _newest(self) -> Any:
        if self._reading is not None:
            self._reading.result()
            self._reading = None
        return self._newest_now()

    def _newest_now(self) -> Any:
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
        return self._table

    def _load(self) -> Any:
        return self._library.DeltaTable(library_url(self._store), storage_options=self._options)

    def loaded(self) -> Any:
        """The table as it is now, of the library, for a thread other than that of commits; None: there is none."""
        try:
            return self._load()
        except self._library.exceptions.TableNotFoundError:
            return None
        except Exception as error:
            raise self._unreadable(error) from error

    def compacted(self, version: int) -> None:
        """This version is a compaction by this process, so our next commit goes behind it without a look. Any thread
        may call."""
        self._compacted.add(version)

    def _behind(self, version: int) -> int:
        """The first version after this one that is no compaction by this process."""
        after = version + 1
        while after in self._compacted:
            self._compacted.discard(after)
            after += 1
        return after

    def _appended(self, version: int, facts: DeltaTableFacts, known: Mapping[str, int]) -> None:
        self._sync(version, data=False)
        self._head = _OwnCommit(version, facts, dict(known))
        for behind in [each for each in tuple(self._compacted) if each < version]:
            self._compacted.discard(behind)
        last, self._last_own = self._last_own, version
        passed = version // _CHECKPOINT_EVERY > last // _CHECKPOINT_EVERY >= 0  # others' versions may be in between
        due = version % _CHECKPOINT_EVERY == 0 or passed
        if due and (self._reading is None or self._reading.done()):
            with contextlib.suppress(RuntimeError):  # a commit may outlive the sink, which is closed
                self._reading = self._threads.submit(self._clean_up)

    def _clean_up(self) -> None:
        """A checkpoint of the log, so that readers need not read all of it. Off the path of commits, which do without
        when it fails; the next one has what it would have had."""
        with contextlib.suppress(BarrierRuntimeError):
            table = self._newest_now()
            if table is not None:
                with contextlib.suppress(Exception):  # whatever delta-rs raises
                    table.create_checkpoint()
                    table.cleanup_metadata()

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _forget(self) -> None:
        """It is read anew the next time."""
        self._table, self._known = None, _NOTHING_KNOWN

    def _committed(self, table: Any, application: str) -> int:
        """The highest checkpoint of this application that the table has; 0 when it has none. delta-rs reads the whole
        log for every answer, so an answer is kept for as long as the table is at its version."""
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
        """Raises `InvalidJob` for a table whose rules this sink cannot keep. Any thread may call."""
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
        """One record of the log, if nobody has written that version: one request, and its answer is all there is to
        know. delta-rs would list the log before it, and read and list again after it."""
        record = append_record(files, checkpoints, facts.partition_by, time.time_ns() // 1_000_000)
        outcome = self._store.put_if_absent(log_key(version), record)
        if outcome is PutOutcome.EXISTS:
            raise Unavailable(f"somebody else has written version {version}")
        if outcome is PutOutcome.UNKNOWN:
            raise Unavailable(f"nobody knows whether version {version} was written")

    def _transaction(self, checkpoints: Mapping[str, int]) -> Any:
        """What a commit carries: by application, the last checkpoint in it."""
        return self._library.CommitProperties(
            app_transactions=[self._library.Transaction(*each) for each in checkpoints.items()]
        )

    # ------------------------------------------------------------ before and after

    def _check_there(self, files: Sequence[DeltaFile]) -> None:
        """Of files that were written just now the subtasks have told it."""
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
        """delta-rs leaves the log, and with `data` the data files that it writes, to the file system's own time. What
        we report as visible must outlive a power cut."""
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
    """Names of the data files that a version has added."""
    try:
        lines = record.read_bytes().splitlines()
    except FileNotFoundError:  # cleaned up: a checkpoint of the log has it
        return []
    actions = [msgspec.json.decode(line) for line in lines if line]
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def _synced(path: Path) -> None:
    """What is not there any more needs nothing."""
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
    """`known`: by application, the highest checkpoint in the table as of `version`."""

    version: int
    facts: DeltaTableFacts
    known: dict[str, int]


class Merging(Protocol):
    """What one checkpoint changes in the table. `fields`, `partition_by`: of a table that is made for it."""

    @property
    def application(self) -> str: ...

    @property
    def checkpoint(self) -> int: ...

    @property
    def fields(self) -> Mapping[str, DeltaType]: ...

    @property
    def partition_by(self) -> Sequence[str]: ...

    def execute(self, table: Any, after: int, properties: Any) -> None:
        """One commit of all behind checkpoint `after` with these properties, on top of the table's version as it was
        loaded."""
        ...


def _highest(committables: Sequence[DeltaCommittable]) -> dict[str, int]:
    """By application: the last checkpoint among these."""
    highest: dict[str, int] = {}
    for each in committables:
        highest[each.application] = max(each.checkpoint, highest.get(each.application, 0))
    return highest
