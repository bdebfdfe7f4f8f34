"""Compaction of small committed files, while readers read and the job writes.

Files that readers of the log (`committed_files`) have listed stay for `keep` more.

| step                                        | readers of the log | folder's listing     | died here, run again     |
|---------------------------------------------|--------------------|----------------------|--------------------------|
| the large file is put below `_compacted/`   | small files        | small files          | left over for a day      |
| a record names the file, not the small files| the large file     | small files          | goes on below            |
| `keep` has passed: the small are deleted    | the large file     | misses rows          | deletes the others       |
| the large file is copied to a visible name  | the hidden file    | the large file       | copies it again          |
| a record names the copy, not the hidden file| the visible file   | the large file       | goes on below            |
| `keep` has passed: the hidden is deleted    | the visible file   | the large file       | deletes it               |

Each run performs the due steps. Concurrent runs are safe: a record is written only if all replaced files are still
visible. Never compact folders that a watching source reads: large files would be read as new rows.
"""

import hashlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.connectors.files.csv_quoting import end_of_first_row
from barrier_runtime.connectors.files.sink.commit_blocks import is_there
from barrier_runtime.connectors.files.sink.commit_log import (
    CommitLog,
    CommittedFile,
    read_commit_log,
    writers_of,
)
from barrier_runtime.connectors.files.sink.commit_record import CommitRecord, live_files
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, copy_object
from barrier_runtime.state.store.open import open_existing_store

_HIDDEN = "_compacted/"
_LEFT_OVER_MS = 24 * 3_600_000
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction run.

    `merged` small files became `made` large files, visible to readers of the log. `shown`: large files of earlier runs
    that replaced their small files in the folder; `waiting`: large files that will do so after `keep`. `skipped`:
    reasons why files were left unchanged.
    """

    merged: int = 0
    made: int = 0
    shown: int = 0
    waiting: int = 0
    skipped: tuple[str, ...] = ()


def compact_files(
    url: str,
    job: str | None = None,
    sink: str | None = None,
    *,
    target_bytes: int = 128 << 20,
    keep_s: float = 3_600.0,
) -> dict[tuple[str, str], Compacted]:
    """Merges small files that file sinks have committed below `url` into large files.
    The job may run meanwhile.

    `job`, `sink`: only their files. Neighbours in a folder, each below half of `target_bytes`, become a file of about
    that size. `keep_s`: how long files stay that readers may have listed; each run continues the previous run, so
    repeat runs. Returns the results by (job, sink). Raises `InvalidJob` if there is no such job or sink.
    """
    if target_bytes < 1 or keep_s < 0:
        raise InvalidJob(f"target_bytes={target_bytes}, keep_s={keep_s}: give bytes, above 0, and seconds, 0 or more")
    store = open_existing_store(url)
    writers = writers_of(store, job, sink)
    return {each: Compaction(store, *each, target_bytes, round(keep_s * 1_000)).run() for each in writers}


@dataclass
class Compaction:
    store: ObjectStore
    job: str
    sink: str
    target_bytes: int
    keep_ms: int
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    _skipped: list[str] = field(default_factory=list)
    _records: list[CommitRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store, self.job, self.sink)
        self._hidden = f"{_HIDDEN}{self.job}/{self.sink}/"

    def run(self) -> Compacted:
        self._records = records = list(read_commit_log(self.store, self.job, self.sink))
        shown, waiting = self._show(records)
        self._drop_hidden(records)
        merged = made = 0
        for run in self._small(records):
            for files in self._of_one_form(run):
                if len(files) > 1 and self._merge(files):
                    merged, made = merged + len(files), made + 1
        return Compacted(merged, made, shown, waiting, tuple(self._skipped))

    def _small(self, records: Sequence[CommitRecord]) -> Iterator[list[CommittedFile]]:
        sizes = {info.key: info.size for info in self.store.list("")}
        runs: dict[str, tuple[list[CommittedFile], int]] = {}
        for file in live_files(records):
            if file.name.startswith(_HIDDEN):
                continue
            folder = file.name.rpartition("/")[0]
            run, size = runs.pop(folder, ([], 0))
            small = file.name in sizes and 2 * sizes[file.name] < self.target_bytes
            if run and (not small or size + sizes[file.name] > self.target_bytes):
                yield _worth_it(run, sizes)
                run, size = [], 0
            if small:
                runs[folder] = [*run, file], size + sizes[file.name]
        yield from (_worth_it(run, sizes) for run, _ in runs.values())

    def _of_one_form(self, run: list[CommittedFile]) -> Iterator[list[CommittedFile]]:
        """Parts of a run whose files have the same columns, if the format shows them."""
        if len(run) < 2:
            return
        part: list[CommittedFile] = []
        last: object = None
        for file in run:
            form = self._form_of(file)
            if part and form != last:
                yield part
                part = []
            if form is not None:
                part.append(file)
            last = form
        yield part

    def _form_of(self, file: CommittedFile) -> object:
        suffix = file.name.rpartition(".")[2]
        try:
            if suffix == "jsonl":
                return suffix
            data = self.store.get(file.name)
        except ObjectNotFound:
            self._skipped.append(f"{file.name} is not there any more")
            return None
        self._check(file, hashlib.sha256(data).hexdigest())
        if suffix == "csv":
            return data[: end_of_first_row(data, ",")]
        if suffix == "parquet":
            return pq.read_schema(pa.BufferReader(data))
        self._skipped.append(f"{file.name} is of no format that can be merged")
        return None

    def _merge(self, files: Sequence[CommittedFile]) -> bool:
        first = files[0].name
        folder, suffix = first.rpartition("/")[0], first.rpartition(".")[2]
        key = f"{self._hidden}{folder}{'/' if folder else ''}{self.new_id()}.{suffix}"
        with tempfile.TemporaryDirectory(prefix="barrier-compaction-") as place:
            path = Path(place) / "merged"
            try:
                rows = _merged(self._downloaded(files, Path(place)), path, suffix)
            except ObjectNotFound as error:
                self._skipped.append(str(error))
                return False
            if rows is not None and rows != sum(file.rows for file in files):
                raise Corrupt(
                    f"{len(files)} files from {first} on have {rows} rows, their commit records say "
                    f"{sum(file.rows for file in files)}: nothing was compacted of them; restore them from a backup"
                )
            large = CommittedFile(key, _sha256_of(path), sum(file.rows for file in files))
            before_ms = self.now_ms()
            self.store.put_file(key, path)
            if self.now_ms() - before_ms > _LEFT_OVER_MS // 2:
                self._skipped.append(f"{key} was put too long ago, so another run may delete it as left over")
            elif self._log.replace(self._records, [file.name for file in files], large, self.now_ms()):
                if not is_there(self.store, key):  # a run with another clock, or before this record, deleted it
                    self.store.put_file(key, path)
                return True
        self.store.delete([key])
        return False

    def _downloaded(self, files: Sequence[CommittedFile], place: Path) -> Iterator[Path]:
        for file in files:
            path = place / "small"
            self.store.get_file(file.name, path)
            self._check(file, _sha256_of(path))
            yield path
            path.unlink()

    def _check(self, file: CommittedFile, sha256: str) -> None:
        if sha256 != file.sha256:
            raise Corrupt(
                f"{self.store.url}/{file.name} is not what was committed: expected sha256 {file.sha256}; nothing was "
                "compacted of it: restore it from a backup"
            )

    def _show(self, records: Sequence[CommitRecord]) -> tuple[int, int]:
        hidden = {file.name for file in live_files(records) if file.name.startswith(self._hidden)}
        shown = waiting = 0
        for record in tuple(records):
            for file in record.files:
                if file.name not in hidden:
                    continue
                if self.now_ms() - record.wall_ms < self.keep_ms:
                    waiting += 1
                    continue
                visible = _visible_name(file.name.removeprefix(self._hidden))
                self._check_hidden(file, record)
                self.store.delete(record.replaces)
                copy_object(self.store, file.name, self.store, visible)
                self._log.replace(
                    self._records, [file.name], CommittedFile(visible, file.sha256, file.rows), self.now_ms()
                )
                shown += 1
        return shown, waiting

    def _check_hidden(self, file: CommittedFile, record: CommitRecord) -> None:
        """Raises `Corrupt` if the large file cannot take the place of the small files."""
        with tempfile.TemporaryDirectory(prefix="barrier-compaction-") as place:
            path = Path(place) / "large"
            try:
                self.store.get_file(file.name, path)
                found = _sha256_of(path)
            except ObjectNotFound:
                found = "nothing"
        if found != file.sha256:
            raise Corrupt(
                f"{self.store.url}/{file.name} is not what was committed: expected sha256 {file.sha256}, found "
                f"{found}. The {len(record.replaces)} small files that it replaces, from {record.replaces[0]} on, are "
                "left as they are: restore the file from a backup, or make it of the small files"
            )

    def _drop_hidden(self, records: Sequence[CommitRecord]) -> None:
        replaced = {name: record.wall_ms for record in records for name in record.replaces}
        now_ms, gone, old = self.now_ms(), list[str](), set[str]()
        for info in self.store.list(self._hidden):
            if info.key in replaced:
                if now_ms - replaced[info.key] >= self.keep_ms:
                    gone.append(info.key)
            elif now_ms - info.modified_ms >= _LEFT_OVER_MS:
                old.add(info.key)
        if old:  # a run that put one of these has written its record by now, or never will
            self._records += read_commit_log(self.store, self.job, self.sink, len(self._records))
            old -= {file.name for record in self._records for file in record.files}
        self.store.delete([*gone, *old])


def _worth_it(run: list[CommittedFile], sizes: Mapping[str, int]) -> list[CommittedFile]:
    """Drops leading files larger than all later files together."""
    total = sum(sizes[file.name] for file in run)
    start = 0
    while start < len(run) and 2 * sizes[run[start].name] > total:
        total -= sizes[run[start].name]
        start += 1
    return run[start:]


def _visible_name(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}compacted-{file}"


def _merged(files: Iterable[Path], into: Path, suffix: str) -> int | None:
    if suffix == "parquet":
        return _merged_parquet(files, into)
    with into.open("xb") as target:
        for number, path in enumerate(files):
            with path.open("rb") as source:
                if suffix == "csv" and number:
                    source.seek(end_of_first_row(path.read_bytes(), ","))
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
    return None


def _merged_parquet(files: Iterable[Path], into: Path) -> int:
    rows, writer = 0, None
    try:
        for path in files:
            with pq.ParquetFile(path) as small:
                if writer is None:
                    writer = pq.ParquetWriter(into, small.schema_arrow)
                table = small.read()
                writer.write_table(table)
                rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
