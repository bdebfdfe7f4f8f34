"""Files that are there, and then those that appear, for ever: a source of files that never ends.

Files must be complete when they appear: write them under a name that begins with `.` or `_` (or elsewhere on the same
file system) and rename them into place. A file whose size changes after it was seen fails the job. Which file is read
first is decided by time of change and name, but this is no promise: several are read at once, by several subtasks.

With event times, a file may bring rows that are older than what was read before it by at most `max_out_of_orderness`;
older ones are late.

Every subtask lists the folder and reads the files that are its own by name. The names of all files that were ever read
stay in the checkpoints, some 30 to 100 bytes each, also after a file was removed, so that none is read twice: begin a
folder (and a job) anew before they are millions.
"""

import zlib
from collections.abc import Collection, Sequence

import pyarrow as pa

from barrier_runtime.sources.base import Discovery, Split, SplitReader
from barrier_runtime.sources.file_listing import FoundFile, find_arrivals
from barrier_runtime.sources.file_source import FileSource
from barrier_runtime.sources.listing_thread import ListingThread
from state.errors import InvalidJob


class WatchedFiles:
    """`inner` reads one file; it was made with `watched=True`. `period_s`: between two listings."""

    exactly_once = True

    def __init__(self, inner: FileSource, period_s: float) -> None:
        self._inner = inner
        self._period_s = period_s

    def __repr__(self) -> str:
        return f"{self._inner!r}, and new ones every {self._period_s:g} s"

    @property
    def schema(self) -> pa.Schema:
        return self._inner.schema

    def splits(self, parallelism: int) -> Sequence[Split]:
        return self._inner.splits(parallelism)

    def reader(self, split: Split) -> SplitReader:
        return self._inner.reader(split)

    def owner(self, split_id: str, parallelism: int) -> int:
        return zlib.crc32(split_id.encode()) % parallelism

    def discovery(self, known: Collection[str]) -> Discovery | None:
        arrivals = _Arrivals(self._inner)
        return ListingThread(arrivals.list, known, self._period_s, self._inner.where)


class _Arrivals:
    """Lists the files again and again, and remembers how large each was when it was first seen by this program."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._sizes = {file.id: file.size for file in source.files}

    def list(self) -> list[Split]:
        files = find_arrivals(self._source.paths, self._source.suffixes, self._source.where)
        for file in files:
            self._check(file)
        return [file.split() for file in files]

    def _check(self, file: FoundFile) -> None:
        size = self._sizes.setdefault(file.id, file.size)
        if size != file.size:
            raise InvalidJob(
                f"{self._source.where}: the file {file.url} had {size} bytes when it was first seen and has "
                f"{file.size} now: files must be complete when they appear; write under a name that begins with '_' "
                "and rename into place"
            )
