"""What sources of files share: the list of files, found once, each of them a split, and a pace over all of them."""

from collections.abc import Sequence

import pyarrow as pa

from barrier_runtime.sources.base import Split, SplitReader
from barrier_runtime.sources.file_listing import FoundFile, find_arrivals, find_files
from state.errors import InvalidJob, Unavailable


class FileSource:
    """Base. Subclasses know a format: `kind`, `suffixes`, `guess`, `check`, `file_reader`.

    `watched`: there may be no file yet, and more will come (see `WatchedFiles`).
    """

    exactly_once = True
    kind: str
    suffixes: tuple[str, ...]

    def __init__(
        self,
        name: str,
        paths: str | Sequence[str],
        schema: pa.Schema | None,
        pace: float | None,
        *,
        watched: bool = False,
    ) -> None:
        self.where = f"source {name!r}"
        if pace is not None and not pace > 0:
            raise InvalidJob(f"{self.where}: pace={pace!r}: give rows per second, above 0")
        if pace is not None and watched:
            raise InvalidJob(f"{self.where}: pace= goes with a fixed list of files, not with watch=: leave one out")
        self.paths = paths
        self._pace = pace
        self.files = self._watched() if watched else find_files(paths, self.suffixes, self.where)
        if schema is None:
            if not self.files:
                raise InvalidJob(f"{self.where}: there is no file to guess types from yet: pass schema=")
            schema = self.guess(self.files[0])
        self.schema = schema

    def __repr__(self) -> str:
        pace = f", {self._pace:g} rows/s" if self._pace else ""
        return f"{len(self.files)} {self.kind} files of {self.paths}{pace}"

    # ------------------------------------------------------------ the format

    def guess(self, file: FoundFile) -> pa.Schema:
        """The schema that a file suggests."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `InvalidJob` for files that cannot be read with this schema, as far as that is seen quickly."""

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> SplitReader:
        raise NotImplementedError

    # ------------------------------------------------------------ Source

    def splits(self, parallelism: int) -> Sequence[Split]:
        self.check()
        return [file.split() for file in self.files]

    def reader(self, split: Split) -> SplitReader:
        return self.file_reader(FoundFile.of(split), self._pace / len(self.files) if self._pace else None)

    def _watched(self) -> list[FoundFile]:
        try:
            return find_arrivals(self.paths, self.suffixes, self.where)
        except Unavailable as error:
            raise InvalidJob(str(error)) from error
