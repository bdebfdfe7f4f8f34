"""Appends to an Iceberg table through pyiceberg, at most once per checkpoint.

A commit is a snapshot. Its summary names the application (job, sink, lineage) and the highest checkpoint, which the
same commit stores in the table property `barrier-runtime.<application>`, because summaries expire with snapshots.

| the table shows for the application | the checkpoint was   | then                                                |
|-------------------------------------|----------------------|-----------------------------------------------------|
| property >= the checkpoint          | appended             | nothing                                             |
| property below the checkpoint       | not appended         | append, if the branch is still at the snapshot read |
| no property (lost, or not yet set)  | as the summaries say | the same, after reading all snapshots               |
| the condition failed, or no answer  | unknown              | read again                                          |

After a failed condition pyiceberg itself would append to the new snapshot without a look, and double the rows. The
number of its retries is a property of the table: the copy in memory says 0.
"""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    ServerError,
    ServiceUnavailableError,
    SignError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
    ValidationError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.utils.config import Config

from barrier_runtime.connectors.iceberg.columns import check_fits
from barrier_runtime.connectors.iceberg.data_files import WrittenFiles, data_files, joined, paths_of, write_files
from barrier_runtime.connectors.iceberg.expiry import APPLICATION, Expired, to_expire, unneeded_files
from barrier_runtime.connectors.iceberg.library import need_core
from barrier_runtime.connectors.iceberg.quick_io import QUICK_FILE_IO
from barrier_runtime.connectors.sink_bases.lake.compaction import groups
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.outside_errors import described, must_be_mended

log = logging.getLogger("barrier_runtime.sinks")
CHECKPOINT = "barrier-runtime.checkpoint"
_KNOWN_S = 60.0  # a catalog's credentials for a table are valid for longer
_BOUNDED = {  # of new tables: metadata must not grow with commits
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.target-size-bytes": str(1 << 20),
}
_CLEAN_FROM = 16
_FILE_IO = "py-io-impl"
LIBRARY_RETRIES = "commit.retry.num-retries"
_REFUSED = (
    *(BadRequestError, ForbiddenError, UnauthorizedError, OAuthError, SignError),
    *(NoSuchNamespaceError, NotInstalledError, ValidationError, ValidationException),
)
_DATABASE_REFUSES = re.compile(
    r"readonly database|unable to open database|authentication failed|access denied|permission denied|does not exist",
    re.IGNORECASE,
)
NO_ANSWER = (OSError, ServerError, ServiceUnavailableError, TooManyRequestsError)


class IcebergTable:
    """Table "namespace.table". Blocking.

    Raises `InvalidJob` if catalog or table cannot be used, `Unavailable` if the catalog does not answer.
    """

    def __init__(
        self,
        name: str,
        catalog: str,
        properties: Mapping[str, str],
        where: str,
        *,
        owner: str = "",
        keep_snapshots: int | None = None,
    ) -> None:
        """`keep_snapshots`: number of newest snapshots to keep of applications beginning with `owner`."""
        self._owner = owner
        self._keep = keep_snapshots
        self._expired: list[Expired] = []
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="iceberg-expiry")
        self._cleaning: Future[None] | None = None
        self._made_of: dict[tuple[str, ...], list[DataFile]] = {}
        self._appended: tuple[float, Table] | None = None  # time, table
        self.compactions = 0
        self._name = name
        self._where = where
        self._last: tuple[float, Table] | None = None  # time, table of the last read for writing
        self.opened = partial(opened_catalog, catalog, properties, where, "IcebergSink")
        self._catalog = self.opened()

    def columns(self) -> pa.Schema | None:
        table = self.now()
        return None if table is None else table.schema().as_arrow()

    def check_writable(self) -> None:
        table = self._known()
        if table is not None:
            check_transforms(table, self._name, self._where)

    def write(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> WrittenFiles:
        """Writes the rows as data files in no snapshot; creates a missing table.

        Raises `Unavailable` for a retry; files already written stay as orphans.
        """
        table = self._known()
        if table is None:
            table = self._created(schema)
            self._last = time.monotonic(), table
        check_fits(schema, table.schema().as_arrow(), self._where, self._name)
        check_transforms(table, self._name, self._where)
        with translated(f"{self._where}: a data file of the table {self._name} cannot be written"):
            return write_files(table, batches, schema, self._owner)

    def as_appended(self) -> Table | None:
        """Table after the own last commit if recent, or None. The next commit notices other writers."""
        appended = self._appended
        return None if appended is None or time.monotonic() - appended[0] > _KNOWN_S else appended[1]

    def compacted(self) -> None:
        """Makes the next commit read the table. Any thread."""
        self._appended = None
        self.compactions += 1

    def existing(self) -> Table:
        table = self.now()
        if table is None:
            raise Unavailable(
                f"{self._where}: the table {self._name} is gone, and decided rows are to be appended: restore it"
            )
        return table

    def append(
        self,
        table: Table,
        application: str,
        checkpoint: int,
        written: Iterable[WrittenFiles],
        *,
        small_together: bool = False,
    ) -> int:
        """Appends the files to `table` as one snapshot, and returns the number of files.

        `small_together` joins small files. Raises `Unavailable` for a retry, `Corrupt` if a file is gone.
        """
        self._appended = None
        table.metadata.properties[LIBRARY_RETRIES] = "0"
        expired = [] if self._keep is None else to_expire(table.metadata, self._owner, self._keep)
        summary = {APPLICATION: application, CHECKPOINT: str(checkpoint)}
        try:
            files = [file for each in written for file in data_files(each)]
            replaced: Sequence[str] = ()
            if small_together:
                files, replaced = self._joined(table, files)
            with ThreadPoolExecutor(max_workers=8) as asking, table.transaction() as transaction:
                there = [(f.file_path, asking.submit(table.io.new_input(f.file_path).exists)) for f in files]
                with transaction._append_snapshot_producer(summary) as producer:
                    for file in files:
                        producer.append_data_file(file)
                transaction.set_properties({_property(application): str(checkpoint)})
                if expired:
                    gone = [each.snapshot.snapshot_id for each in expired]
                    transaction._apply((RemoveSnapshotsUpdate(snapshot_ids=gone),))
                self._check_there([path for path, exists in there if not exists.result()])
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise Unavailable(
                f"{self._where}: another writer has changed the table {self._name}, or the catalog has not answered "
                f"({error}): it is looked at again"
            ) from error
        except BarrierRuntimeError:
            raise
        except Exception as error:
            raise trouble(error, f"{self._where}: files cannot be added to the table {self._name}") from error
        self._appended = time.monotonic(), table
        if replaced:
            self._later(deleted, table.io, replaced)
        self._expired += expired
        if len(self._expired) >= _CLEAN_FROM and (self._cleaning is None or self._cleaning.done()):
            expired, self._expired = self._expired, []
            self._cleaning = self._later(_clean, expired, table.io)
        return len(files)

    def _later(self, work: Callable[..., None], *arguments: object) -> "Future[None] | None":
        """Runs work beside commits. None after `close`, which a running commit may outlive."""
        try:
            later = self._threads.submit(work, *arguments)
        except RuntimeError:
            return None
        later.add_done_callback(self._log_failure)
        return later

    def _log_failure(self, done: "Future[None]") -> None:
        if error := done.exception():
            log.error("%s: work behind a commit failed: %s", self._where, error, exc_info=error)

    def _joined(self, table: Table, files: Sequence[DataFile]) -> tuple[list[DataFile], list[str]]:
        """Fewer files with the same rows (kept for a next attempt), and the replaced paths."""
        found: list[DataFile] = []
        replaced: list[str] = []
        made: dict[tuple[str, ...], list[DataFile]] = {}
        for group in groups(files, lambda file: int(file.file_size_in_bytes), _partition_of):
            if len(group) == 1:
                found += group
                continue
            paths = tuple(file.file_path for file in group)
            made[paths] = self._made_of.get(paths) or self._joined_files(table, group)
            found += made[paths]
            replaced += paths
        self._made_of = made
        return found, replaced

    def _joined_files(self, table: Table, files: Sequence[DataFile]) -> list[DataFile]:
        try:
            return joined(table, files, self._owner)
        except FileNotFoundError as error:
            self._check_there([str(error)])
            raise

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _check_there(self, gone: Sequence[str]) -> None:
        if gone:
            raise Corrupt(
                f"{self._where}: {len(gone)} decided data files of the table {self._name} are gone, such as "
                f"{gone[0]} (removed as orphans?): restore them from a backup; the commit is tried again"
            )

    def drop(self, written: Sequence[WrittenFiles]) -> None:
        table = self.now()
        if table is None:
            return
        for path in paths_of(written):
            with contextlib.suppress(OSError):
                table.io.delete(path)

    def _known(self) -> Table | None:
        """Table as of a recent read: only for schema and spec, whose ids never change."""
        if self._last is None or time.monotonic() - self._last[0] > _KNOWN_S:
            table = self.now()
            self._last = None if table is None else (time.monotonic(), table)
        return None if self._last is None else self._last[1]

    def now(self) -> Table | None:
        return loaded(self._catalog, self._name, self._where)

    def _created(self, schema: pa.Schema) -> Table:
        """Tries twice: an SQL catalog may refuse one of two processes."""
        for last in (False, True):
            try:
                return self._made(schema)
            except Exception as error:
                found = trouble(error, f"{self._where}: the table {self._name} cannot be made now")
                if last or isinstance(found, InvalidJob):
                    raise found from error
        raise AssertionError("it was made, or that was told")

    def _made(self, schema: pa.Schema) -> Table:
        try:
            with contextlib.suppress(NamespaceAlreadyExistsError):
                self._catalog.create_namespace(self._name.rpartition(".")[0])
            return self._catalog.create_table(self._name, schema, properties=_BOUNDED)
        except TableAlreadyExistsError:
            return self._catalog.load_table(self._name)


def _partition_of(file: DataFile) -> tuple[int, str]:
    return file.spec_id, repr(file.partition)


def deleted(io: FileIO, paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(*NO_ANSWER):
            io.delete(path)


def _clean(expired: Sequence[Expired], io: FileIO) -> None:
    with contextlib.suppress(*NO_ANSWER, *database_errors()):
        deleted(io, unneeded_files(expired, io))


def check_transforms(table: Table, name: str, where: str) -> None:
    for field in table.spec().fields:
        if isinstance(field.transform, IdentityTransform | VoidTransform):
            continue
        if isinstance(field.transform, UnknownTransform):
            raise InvalidJob(
                f"{where}: the table {name} is partitioned by {field.transform}, which pyiceberg does not know: write "
                "to a table with other partitions"
            )
        need_core(f"{where}: the table {name} is partitioned by {field.transform}, and IcebergSink")


def has(table: Table, application: str, checkpoint: int) -> bool:
    """True if this or a later checkpoint was appended."""
    said = table.properties.get(_property(application))
    if said is not None:
        return int(said) >= checkpoint
    return any(_is_of(snapshot.summary, application, checkpoint) for snapshot in table.metadata.snapshots)


def _is_of(summary: Any, application: str, checkpoint: int) -> bool:
    if summary is None:
        return False
    said: Mapping[str, str] = summary.additional_properties
    return said.get(APPLICATION) == application and int(said.get(CHECKPOINT, "0")) >= checkpoint


def database_errors() -> tuple[type[Exception], ...]:
    """Errors of an SQL catalog without an answer."""
    if "sqlalchemy" not in sys.modules:
        return ()
    from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError

    return OperationalError, InterfaceError, IntegrityError


def trouble(error: Exception, failure: str) -> BarrierRuntimeError:
    if isinstance(error, BarrierRuntimeError):
        return error
    refused = isinstance(error, database_errors()) and _DATABASE_REFUSES.search(str(error))
    if refused or isinstance(error, _REFUSED) or must_be_mended(error):
        return InvalidJob(
            f"{failure}: {described(error)}. Correct the table, the catalog's properties or the rights of this "
            "process; then start the job again"
        )
    return Unavailable(f"{failure}: {described(error)}; it is tried again")


@contextlib.contextmanager
def translated(failure: str, *but: type[Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, (BarrierRuntimeError, *but)):
            raise
        raise trouble(error, failure) from error


def loaded(catalog: Catalog, name: str, where: str) -> Table | None:
    try:
        with translated(f"{where}: the catalog does not tell of the table {name}", NoSuchTableError):
            return catalog.load_table(name)
    except NoSuchTableError:
        return None


def _property(application: str) -> str:
    return f"barrier-runtime.{application}"


def opened_catalog(catalog: str, properties: Mapping[str, str], where: str, who: str) -> Catalog:
    try:
        return _opened(catalog, properties)
    except (*NO_ANSWER, *database_errors()) as error:
        raise trouble(error, f"{where}: the Iceberg catalog {catalog!r} does not answer") from error
    except Exception as error:  # many kinds, from the catalog's own client
        raise InvalidJob(
            f"{where}: the Iceberg catalog {catalog!r} cannot be opened ({type(error).__name__}: {error}): give "
            f"{who} the catalog's properties, or set PYICEBERG_CATALOG__<NAME>__URI and the others"
        ) from error


def _opened(name: str, properties: Mapping[str, str]) -> Catalog:
    """Tries twice: another process may create an SQL catalog's tables."""
    configured = Config().get_catalog_config(name) or {}
    if _FILE_IO not in {*properties, *configured}:
        properties = {**properties, _FILE_IO: QUICK_FILE_IO}
    with contextlib.suppress(Exception):
        return load_catalog(name, **properties)
    return load_catalog(name, **properties)
