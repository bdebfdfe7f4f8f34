"""Staging of files: bytes wait for the decision as a durable, invisible object, on any store."""

import dataclasses
import hashlib
import threading
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import msgspec

from barrier_runtime.connectors.job_log import log_id
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.file_committable import (
    RANDOM_DIGITS,
    FileNames,
    StagedFile,
    Sweep,
    incarnation_of,
    log_tag,
    sink_tag,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.multipart import HasMultipart, MultipartUploads
from barrier_runtime.state.store.object_store import CopiesStaged, ObjectNotFound, ObjectStore
from barrier_runtime.state.store.open import within
from barrier_runtime.state.store.paths import too_long
from barrier_runtime.state.texts import counted


def names_of(context: SinkContext, suffix: str) -> FileNames:
    owner = log_tag(log_id(context), context.job_store.url)
    random = context.new_id()[:RANDOM_DIGITS]
    return FileNames(context.job, context.sink, context.token, context.subtask, owner, random, suffix)


def example_of(url: str, suffix: str, partition_by: Sequence[str] = ()) -> str:
    file = FileNames("job", "sink", 1, 0, "0" * 16, "0" * RANDOM_DIGITS, suffix).final(1, 0)
    folders = "".join(f"{name}=x/" for name in partition_by)
    return within(url, folders + file)


def check_folder(folder: str, store: ObjectStore, names: FileNames, where: str) -> None:
    trouble = too_long(names.longest_final(folder), store) if folder else ""
    if trouble:
        longest = max(folder.split("/"), key=lambda segment: len(segment.encode()))
        column, _, value = longest.partition("=")
        raise InvalidJob(
            f"{where}: a file in the folder of partition column {unquote(column)!r} with the value "
            f"{unquote(value)[:60]!r}… {trouble}: shorten the values of the column, or partition by another one"
        )


class Staging:
    """Staged objects of a sink subtask. Blocks; pre-commit and commit may run in parallel."""

    def __init__(self, store: ObjectStore, names: FileNames, where: str) -> None:
        self._store = store
        self._names = names
        self._where = where
        self._last = 0
        self._counting = threading.Lock()
        self._never_shown: set[str] = set()  # staged by this incarnation; `show` was never tried
        self._multipart: MultipartUploads | None = None

    def stage(self, data: bytes, rows: int, earliest: int, folder: str = "") -> StagedFile:
        """Makes the bytes durable. `folder`: of the final file, with a slash."""
        key = self._names.staged(self._next_number())
        self._store.put(key, data)
        self._never_shown.add(key)
        return StagedFile(key, folder, hashlib.sha256(data).hexdigest(), rows, len(data))

    def closed(self, files: Iterable[StagedFile], checkpoint: int) -> tuple[StagedFile, ...]:
        return tuple(
            msgspec.structs.replace(file, final=self._names.final(checkpoint, number, file.final))
            for number, file in enumerate(files)
        )

    def is_fresh(self, file: StagedFile) -> bool:
        """True if nobody has tried to show this file: this incarnation staged it."""
        return file.staged in self._never_shown

    def show(self, file: StagedFile, *, keep: bool = False) -> None:
        """Publishes the file under its final name and deletes the staged object, unless `keep`. Idempotent.

        Raises `Corrupt` for missing bytes, or other bytes under the final name.
        """
        if file.upload is not None:
            self._show_upload(file)
            return
        fresh = self.is_fresh(file)
        self._never_shown.discard(file.staged)
        show = self._store.show if keep and isinstance(self._store, CopiesStaged) else self._store.publish
        try:
            show(file.staged, file.final, file.sha256, fresh=fresh)
        except ObjectNotFound as error:
            raise Corrupt(
                f"{self._where}: a decided file of {counted(file.rows, 'row')} is gone: {self._store.url} has neither "
                f"the staged {file.staged} nor the final {file.final} (sha256 {file.sha256}). Was it aborted, moved or "
                "deleted? Put one of them back; the commit is tried again"
            ) from error

    @property
    def leaves_staged(self) -> bool:
        return isinstance(self._store, CopiesStaged)

    def drop_shown(self, files: Sequence[StagedFile]) -> None:
        if self.leaves_staged:
            self._store.delete([file.staged for file in files if file.upload is None])

    def drop(self, files: Sequence[StagedFile]) -> None:
        """Deletes staged objects and aborts uploads. Idempotent; shown files stay."""
        self._never_shown.difference_update(file.staged for file in files)
        self._store.delete([file.staged for file in files if file.upload is None])
        for file in files:
            if file.upload is not None:
                self._uploads().abort(file.final, file.upload.id)

    def sweep(self, parallelism: int, decided: Iterable[StagedFile], *, shown: bool = True) -> None:
        """Deletes undecided objects of older generations in this subtask's share.

        `decided`: objects already shown, or with `shown=False` still needed.
        """
        decided = list(decided)
        names, known = self._names, frozenset(incarnation_of(file) for file in decided)
        sweep = Sweep(names.token, names.subtask, parallelism, names.owner, known)
        stay = set() if shown else {file.staged for file in decided}
        listed = (info.key for info in self._store.list(names.staging))
        self._store.delete([key for key in listed if sweep.takes_staged(key) and key not in stay])
        if shown and any(file.upload is not None for file in decided):  # of an older release, which left other uploads
            self._sweep_uploads(dataclasses.replace(sweep, owner=sink_tag(names.job, names.sink) + names.owner))

    def _sweep_uploads(self, sweep: Sweep) -> None:
        for key, upload_id in list(self._uploads().list("")):  # earlier runs may have had other folders
            if sweep.takes_upload(key):
                self._uploads().abort(key, upload_id)

    def _uploads(self) -> MultipartUploads:
        if self._multipart is None:
            self._multipart = self._made_uploads()
        return self._multipart

    def _made_uploads(self) -> MultipartUploads:
        if not isinstance(self._store, HasMultipart):
            raise InvalidJob(
                f"{self._where}: {self._store.url} has no multipart uploads, but a file of the checkpoint is one: "
                "start the job with the location that it had"
            )
        return self._store.multipart()

    def _show_upload(self, file: StagedFile) -> None:
        assert file.upload is not None
        try:
            self._uploads().complete(file.final, file.upload, file.sha256, file.size)
        except Corrupt as error:
            raise Corrupt(f"{self._where}: {error}") from error

    def _next_number(self) -> int:
        with self._counting:
            self._last += 1
            return self._last
