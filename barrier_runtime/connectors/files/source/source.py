"""Base of users' descriptions of file sources: paths, and the handling of new and changed files."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import pyarrow as pa

from barrier_runtime.connectors.files.source.files import Files, OnChange
from barrier_runtime.connectors.files.source.watch import WatchedFiles
from barrier_runtime.connectors.source import Source, SourceSettings
from barrier_runtime.data.schemas import Duration, SchemaLike, as_schema, milliseconds
from barrier_runtime.state.errors import InvalidJob


@dataclass(frozen=True)
class FileSource(SourceSettings, ABC):
    """Base of the sources of files. `ParquetSource` documents the fields."""

    paths: str | Sequence[str]
    _: KW_ONLY
    schema: SchemaLike | None = None
    pace: float | None = None
    watch: Duration | None = None
    on_change: OnChange = "fail"

    @abstractmethod
    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        """Returns the existing files as a source of their format."""

    def named(self, name: str) -> Source:
        """Returns the source after listing the files.
        Raises `InvalidJob` for missing paths and damaged or unfitting files."""
        schema = as_schema(self.schema, f"source {name!r}") if self.schema is not None else None
        files = self.files(name, schema, watched=self.watch is not None)
        return files if self.watch is None else WatchedFiles(files, _period_s(self.watch, name))


@dataclass(frozen=True)
class GuessingSource(FileSource):
    """Base of `CsvSource` and `JsonlSource`. `types`: types of some columns, written as `schema` is.

    The types of the other columns are guessed from the beginning of the first file."""

    types: SchemaLike | None = None

    def declared(self, name: str) -> pa.Schema | None:
        """The schema of `types`. Raises `InvalidJob`."""
        if self.types is None:
            return None
        where = f"source {name!r}"
        if self.schema is not None:
            raise InvalidJob(
                f"{where}: schema= says the types of all columns, and types= of some, with the rest guessed: leave one "
                "out"
            )
        return as_schema(self.types, where, "types")


def _period_s(watch: Duration, name: str) -> float:
    period_ms = milliseconds(watch, f"watch of source {name!r}")
    if period_ms < 1:
        raise InvalidJob(f"source {name!r}: watch={watch!r}: give the time between two looks, at least a millisecond")
    return period_ms / 1000
