"""Base of sources of files."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Literal, get_args

import pyarrow as pa

from barrier_runtime.connectors.files.hive import check_guessed, guess_columns, values_of
from barrier_runtime.connectors.files.paths import PassedOver
from barrier_runtime.connectors.files.source.listing import FoundFile, find_arrivals, find_files, would_find
from barrier_runtime.connectors.files.source.reader import FileReader, position_of, renewed_marks
from barrier_runtime.connectors.files.source.remote import is_remote
from barrier_runtime.connectors.files.source.text import is_compressed
from barrier_runtime.connectors.source import Remaining, Split, SplitReader
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.texts import counted

log = logging.getLogger("barrier_runtime.files")
_CHECKED_IN_DRIVER = 200  # local files; others are checked when opened

OnChange = Literal["fail", "append"]
FileOrder = Literal["name", "modified"]
_ORDERS = {"name": "name", "modified": "time of change"}
ROWS_ARE_GIVEN: ContextVar[bool] = ContextVar("a check builds a flow whose sources it replaces", default=False)


def with_types(guessed: pa.Schema, types: pa.Schema) -> pa.Schema:
    return pa.schema([types.field(field.name) if field.name in types.names else field for field in guessed])


class Files:
    """Base of the formats. `watched`: files may appear later.
    `types`: schema of the columns that are not guessed.
    """

    exactly_once = True
    endless = False
    in_folders = True  # folders `day=2026-01-01/` become columns
    may_grow = False
    file_order: FileOrder | None = None  # None: files are read side by side
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
        on_change: OnChange = "fail",
        types: pa.Schema | None = None,
    ) -> None:
        self.where = f"source {name!r}"
        if on_change not in ("fail", "append"):
            raise InvalidJob(f"{self.where}: on_change={on_change!r}: use 'fail' or 'append'")
        self.grows = on_change == "append"
        if pace is not None and not pace > 0:
            raise InvalidJob(f"{self.where}: pace={pace!r}: give rows per second, above 0")
        if pace is not None and watched:
            raise InvalidJob(f"{self.where}: pace= goes with a fixed list of files, not with watch=: leave one out")
        self.paths = paths
        self._pace = pace
        self._passed = PassedOver()
        self.files = [] if ROWS_ARE_GIVEN.get() and schema is not None else self._listed(watched)
        if self._passed:
            level = logging.WARNING if self._passed.unexpected else logging.INFO
            log.log(level, "%s: not everything there is read%s", self.where, self._passed)
        if self.grows:
            self._check_growing()
        self._guesses = schema is None
        self.types = types if types is not None else pa.schema([])
        self._logged = False
        if schema is None:
            if not self.files:
                raise InvalidJob(f"{self.where}: there is no file to guess types from yet: pass schema=")
            schema = self._guessed()
        self.schema = schema

    def leaves_column_out(self, where: str, found: Sequence[str], guessed: pa.Schema) -> bool:
        left = next((name for name in found if name not in guessed.names), None) if self._guesses else None
        if left is not None:
            self.log_left_out(where, left)
        return left is not None

    def log_left_out(self, where: str, column: str) -> None:
        if not self._logged:
            self._logged = True
            lacking = "column %r is not among those that were guessed from the beginning of the first file"
            remedy = "name it in types= or schema="
            if not self._guesses:
                lacking, remedy = "key %r of an object is not in schema=", "add it to schema="
            log.warning(f"%s: {lacking}, so it is left out, as others may be: {remedy} to read it", where, column)

    @property
    def checked_in_driver(self) -> Sequence[FoundFile]:
        """Local files to check; a slot checks remote files."""
        return [file for file in self.files[:_CHECKED_IN_DRIVER] if not is_remote(file.url)]

    @property
    def positions_in(self) -> str:
        return f"{self.kind} files"

    def __repr__(self) -> str:
        order = f", one after another by {_ORDERS[self.file_order]}" if self.file_order else ""
        pace = f", {self._pace:g} rows/s" if self._pace else ""
        return f"{counted(len(self.files), f'{self.kind} file')} of {self.paths}{self._passed}{order}{pace}"

    @property
    def passed_over(self) -> int:
        return self._passed.unexpected

    @property
    def several(self) -> bool:
        return len(self.files) > 1 and not self.in_turn

    @property
    def in_turn(self) -> bool:
        return self.file_order is not None

    def turn(self, split: Split) -> tuple[int, str, str]:
        return self.place(FoundFile.of(split))

    def place(self, file: FoundFile) -> tuple[int, str, str]:
        """Sorts by the path below the folder, or by time of change and path."""
        return file.modified_ns if self.file_order == "modified" else 0, file.id.removeprefix("./"), file.id

    def read_in_order(self, order: FileOrder, *, watched: bool) -> None:
        """Raises `InvalidJob` for another order, or for files that grow."""
        if order not in get_args(FileOrder):
            raise InvalidJob(f"{self.where}: file_order={order!r}: use 'name' or 'modified'")
        if self.grows:
            raise InvalidJob(
                f"{self.where}: file_order= and on_change='append' together: rows that a file gains later would come "
                "after the rows of later files: leave one out"
            )
        self.file_order = order
        self.files = self.in_order(self.files, self._watched if watched else lambda: self.files)

    def in_order(self, found: Sequence[FoundFile], list_again: Callable[[], Iterable[FoundFile]]) -> list[FoundFile]:
        """Adds files that `found`, a listing, lacks although they appeared before a found file of a later place."""
        if not found:
            return []
        last = max(map(self.place, found))
        return sorted((file for file in list_again() if self.place(file) <= last), key=self.place)

    @property
    def is_one_file(self) -> bool:
        """Returns whether no other files can appear."""
        paths = str(self.paths)
        return paths.endswith(self.suffixes) and not set("*?[") & set(paths) and len(self.files) < 2

    def reading(self, columns: Collection[str]) -> "Files":
        return self

    def schema_in(self, file: FoundFile) -> pa.Schema:
        """Columns that the file itself contains; others come from the path."""
        return self._not_in_folders(self.schema, file)

    def _not_in_folders(self, whole: pa.Schema, file: FoundFile) -> pa.Schema:
        values = values_of(file.folders) if self.in_folders else {}
        schema = pa.schema([field for field in whole if field.name not in values])
        if values and not len(schema):
            raise InvalidJob(
                f"{self.where}: schema= names columns of the folders alone ({', '.join(values)}): add a column that is "
                "in the files"
            )
        return schema

    def _guessed(self) -> pa.Schema:
        schema = self.guess(self.files[0])
        if not self.in_folders:
            return schema
        added = with_types(guess_columns((file.folders for file in self.files), self.where), self.types)
        return pa.schema([*(field for field in schema if field.name not in added.names), *added])

    def guess(self, file: FoundFile) -> pa.Schema:
        raise NotImplementedError

    def check(self) -> None:
        """Raises `InvalidJob` for files that, by a quick check, do not fit the schema."""

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> FileReader:
        raise NotImplementedError

    def reads_from(self, place: str) -> bool:
        return would_find(self.paths, self.suffixes, self.where, place)

    def splits(self, parallelism: int) -> Sequence[Split]:
        self.check()
        return [file.split() for file in self.files]

    def reader(self, split: Split) -> SplitReader:
        file = FoundFile.of(split)
        at_once = 1 if self.in_turn else len(self.files)
        reader = self.file_reader(file, self._pace / at_once if self._pace else None)
        values = values_of(file.folders) if self.in_folders else {}
        if any(name in values for name in self.schema.names):
            if self._guesses:
                guessed = {name: text for name, text in values.items() if name not in self.types.names}
                check_guessed(guessed, self.schema, reader.where)
            reader.add_columns(self.schema, values)
        return reader

    def left(self, splits: Sequence[Split], positions: Mapping[str, bytes]) -> Remaining:
        """Positions in text files count; other unfinished files count as a whole."""
        sizes = {split.id: split.size or 0 for split in splits}
        read = sum(min(position_of(at).offset, sizes.get(id, 0)) for id, at in positions.items())
        return Remaining(bytes=sum(sizes.values()) - read)

    def renewed_marks(self, finished: Sequence[tuple[Split, int]]) -> Sequence[tuple[Split, int]]:
        return renewed_marks(finished, self.where)

    def _check_growing(self) -> None:
        if not self.may_grow:
            raise InvalidJob(
                f"{self.where}: on_change='append' needs text files: a {self.kind} file that is written anew with more "
                "rows has none of its old places; put new rows into files of their own"
            )
        if self._pace is not None:
            raise InvalidJob(f"{self.where}: pace= counts on files that do not grow: leave it or on_change= out")
        packed = [file.id for file in self.files if is_compressed(file)]
        if packed:
            raise InvalidJob(
                f"{self.where}: on_change='append' needs text that is not compressed, and {packed[0]} is: a compressed "
                "file cannot be read on from the middle; write plain files, or leave on_change= out"
            )

    def _listed(self, watched: bool) -> list[FoundFile]:
        try:
            if watched:
                return self._watched(self._passed)
            return find_files(self.paths, self.suffixes, self.where, self._passed)
        except (InvalidJob, Unavailable) as error:
            if not ROWS_ARE_GIVEN.get():
                raise
            raise InvalidJob(f"{error}. check() needs files only to guess types: pass schema=") from error

    def _watched(self, passed: PassedOver | None = None) -> list[FoundFile]:
        try:
            return find_arrivals(self.paths, self.suffixes, self.where, passed=passed)
        except Unavailable as error:
            raise InvalidJob(str(error)) from error
