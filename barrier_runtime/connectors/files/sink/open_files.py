"""Rows of open files of a rolling file sink, which grow over several checkpoints. Pure.

A rolled file is staged, and becomes visible with the checkpoint that rolled the file.

| before        | event                                        | next                                              |
|---------------|----------------------------------------------|---------------------------------------------------|
| nothing       | rows of a folder                             | an open file, whose age counts from now           |
| an open file  | rows of the same folder and columns          | grows                                             |
|               | … with other columns                         | rolled, and another begins                        |
|               | has `size` bytes, or is `age` old            | rolled                                            |
|               | all open files together pass `most_bytes`    | the largest are rolled until they do not          |
|               |   or `most_files`                            |                                                   |
|               | the input has ended                          | rolled                                            |
|               | a snapshot                                   | the rows are in the snapshot, or in a rolled file |
|               |                                              |   of the same snapshot, never in both             |

Snapshots store *parts*: the rows of all folders from a checkpoint in a single value. Parts of similar size are merged,
and parts with mostly rolled files are rewritten.
"""

import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import pyarrow as pa

from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import value_format
from barrier_runtime.state.versioned import VersionedDecoder

LIST = "files"  # name of the kept value that lists the parts
_MERGED = 8  # parts of similar size
_SMALLEST = 64 << 10  # bytes; smaller parts count as equal
_LIST_VERSION = 1
_MOST_FILES = 1_000

_Key: TypeAlias = tuple[str, pa.Schema]  # folder and columns of an open file


@dataclass(frozen=True)
class Rolling:
    """Limits: `size` bytes in memory or `age_ms` after the first row; `most_bytes` of all files."""

    size: int
    age_ms: int
    most_bytes: int
    most_files: int = _MOST_FILES


class _StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    folder: str
    since_ms: int  # wall clock of the first row


class _StoredPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    files: tuple[_StoredFile | None, ...]


class _StoredList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    parts: tuple[_StoredPart, ...]  # in row order


_LIST = VersionedDecoder(value_format("{}: open files of a sink", _LIST_VERSION), msgspec.json.Decoder(_StoredList))


@dataclass(frozen=True)
class _Part:
    """Rows of checkpoints. `tables`: in fixed order; None: rolled. `bytes`: of all tables when made."""

    id: int
    tables: tuple[tuple[_Key, pa.Table | None], ...]
    bytes: int

    @property
    def level(self) -> int:
        level, bound = 0, _SMALLEST
        while self.bytes > bound:
            level, bound = level + 1, bound * _MERGED
        return level

    def live(self) -> list[tuple[_Key, pa.Table]]:
        return [(key, table) for key, table in self.tables if table is not None]

    def without(self, keys: Container[_Key]) -> "_Part":
        return replace(self, tables=tuple((key, None if key in keys else table) for key, table in self.tables))


@dataclass(frozen=True)
class OpenFiles:
    """Open files of a sink subtask, immutable: a failed attempt changes nothing.

    `unique`: part of names, per incarnation.
    """

    unique: str
    parts: tuple[_Part, ...] = ()
    since_ms: Mapping[_Key, int] = field(default_factory=dict)
    next_id: int = 1

    def grown(
        self, rows: Mapping[str, pa.Table], now_ms: int, rolling: Rolling | None, *, last: bool = False
    ) -> tuple["OpenFiles", list[tuple[str, pa.Table]]]:
        """Returns the open files with the added `rows` by folder, and the rolled files as folder and rows.

        With `rolling` None, or `last`, all files are rolled.
        """
        # If the clock was set back, the age counts from now.
        since_ms = {key: min(since, now_ms) for key, since in self.since_ms.items()}
        added = tuple(((folder, table.schema), table) for folder, table in rows.items() if table.num_rows)
        others = {key for key in since_ms for folder, table in rows.items() if _replaced(key, folder, table)}
        grown = self
        if added:
            part = _Part(self.next_id, added, sum(table.nbytes for _, table in added))
            since_ms |= {key: since_ms.get(key, now_ms) for key, _ in added}
            grown = replace(self, parts=(*self.parts, part), next_id=self.next_id + 1)
        grown = replace(grown, since_ms=since_ms)
        done = list(since_ms) if rolling is None or last else grown._done(others, now_ms, rolling)
        rolled = [(key[0], grown._rows(key)) for key in done]
        return grown._without(frozenset(done))._tidied(), rolled

    def _done(self, others: set[_Key], now_ms: int, rolling: Rolling) -> list[_Key]:
        sizes = dict.fromkeys(self.since_ms, 0)
        for part in self.parts:
            for key, table in part.live():
                sizes[key] += table.nbytes
        done = [
            key
            for key, since in self.since_ms.items()
            if key in others or sizes[key] >= rolling.size or now_ms - since >= rolling.age_ms
        ]
        left = sorted(sizes.keys() - set(done), key=lambda key: (sizes[key], key[0]))
        total = sum(sizes[key] for key in left)
        while left and (total > rolling.most_bytes or len(left) > rolling.most_files):
            total -= sizes[left[-1]]
            done.append(left.pop())
        return done

    def _rows(self, key: _Key) -> pa.Table:
        return pa.concat_tables([table for part in self.parts for each, table in part.live() if each == key])

    def _without(self, keys: frozenset[_Key]) -> "OpenFiles":
        if not keys:
            return self
        parts = (part.without(keys) for part in self.parts)
        since_ms = {key: since for key, since in self.since_ms.items() if key not in keys}
        return replace(self, parts=tuple(part for part in parts if part.live()), since_ms=since_ms)

    def _tidied(self) -> "OpenFiles":
        parts, next_id = list(self.parts), self.next_id
        for index, part in enumerate(parts):
            if 2 * sum(table.nbytes for _, table in part.live()) < part.bytes:
                parts[index] = _merged(next_id, [part])
                next_id += 1
        level = 0
        while parts and level <= max(part.level for part in parts):
            small = 0
            while small < len(parts) and parts[-1 - small].level <= level:
                small += 1
            if small >= _MERGED:
                parts[-small:] = [_merged(next_id, parts[-small:])]
                next_id += 1
            level += 1
        return replace(self, parts=tuple(parts), next_id=next_id)

    def names(self) -> frozenset[str]:
        return frozenset(map(self._name, self.parts))

    def kept(self, stored: Container[str]) -> dict[str, bytes]:
        if not self.parts:
            return {}
        values = {self._name(part): _encoded(part) for part in self.parts if self._name(part) not in stored}
        listed = tuple(
            _StoredPart(
                self._name(part),
                tuple(None if rows is None else _StoredFile(key[0], self.since_ms[key]) for key, rows in part.tables),
            )
            for part in self.parts
        )
        return {**values, LIST: msgspec.json.encode(_StoredList(_LIST_VERSION, listed))}

    def _name(self, part: _Part) -> str:
        return f"{self.unique}-{part.id}"


def restored(unique: str, kept: Iterable[Mapping[str, bytes]], where: str) -> OpenFiles:
    """Open files from the kept values of several subtasks, in order. Raises `Corrupt`."""
    parts: list[_Part] = []
    since_ms: dict[_Key, int] = {}
    for values in kept:
        listed = _LIST.decode(values[LIST], where).parts if LIST in values else ()
        for stored in listed:
            place = f"{where}: part {stored.name} of its open files"
            if stored.name not in values:
                raise Corrupt(f"{place} is not in the checkpoint: restore an intact copy of it")
            tables = _decoded(values[stored.name], place)
            if len(tables) != len(stored.files):
                raise Corrupt(f"{place} has {len(tables)} tables, {len(stored.files)} are listed: restore a backup")
            live = []
            for file, table in zip(stored.files, tables, strict=True):
                if file is not None and table is not None:
                    key = (file.folder, table.schema)
                    since_ms[key] = min(since_ms.get(key, file.since_ms), file.since_ms)
                    live.append((key, table))
            parts.append(_Part(len(parts) + 1, tuple(live), sum(table.nbytes for _, table in live)))
    return OpenFiles(unique, tuple(part for part in parts if part.tables), since_ms, len(parts) + 1)


def _replaced(key: _Key, folder: str, table: pa.Table) -> bool:
    return key[0] == folder and bool(table.num_rows) and not key[1].equals(table.schema)


def _merged(id: int, parts: Iterable[_Part]) -> _Part:
    tables: dict[_Key, list[pa.Table]] = {}
    for part in parts:
        for key, table in part.live():
            tables.setdefault(key, []).append(table)
    together = tuple((key, pa.concat_tables(found).combine_chunks()) for key, found in tables.items())
    return _Part(id, together, sum(table.nbytes for _, table in together))


def _encoded(part: _Part) -> bytes:
    """Lengths of Arrow streams, then the streams; a rolled table has length 0."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    streams = []
    for _, table in part.tables:
        sink = pa.BufferOutputStream()
        if table is not None:
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table.combine_chunks())
        streams.append(sink.getvalue().to_pybytes())
    return struct.pack(f"<I{len(streams)}Q", len(streams), *map(len, streams)) + b"".join(streams)


def _decoded(data: bytes, where: str) -> list[pa.Table | None]:
    tables: list[pa.Table | None] = []
    try:
        (count,) = struct.unpack_from("<I", data)
        lengths = struct.unpack_from(f"<{count}Q", data, 4)
        start = 4 + 8 * count
        for length in lengths:
            stream = pa.py_buffer(data)[start : start + length]
            tables.append(pa.ipc.open_stream(stream).read_all() if length else None)
            start += length
    except (struct.error, pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"{where} cannot be read ({error}): restore an intact copy of the checkpoint") from error
    return tables
