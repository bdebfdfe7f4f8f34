"""RocksDB as the key-value store; the only file that imports rocksdict.

Raw mode, because rocksdict's default mode unpickles stored bytes. rocksdict prefers a `rocksdict-config.json` in the
database's folder to the caller's options, so this file is written before every open, never into a snapshot. Checkpoints
replace the write-ahead log.
"""

import os
import shutil
import stat
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.rocksdb_files import LiveFiles, SmallFiles, UnknownLayout
from barrier_runtime.state.kv.store import Entry, is_full_disk, trouble
from barrier_runtime.state.scratch import link_or_copy

_CURRENT = "CURRENT"
CONFIG_FILE = "rocksdict-config.json"
_OUR_CONFIG = '{"raw_mode":true,"prefix_extractors":{}}'
_MIB = 1 << 20
_FIRST_SCANNED = 4  # entries per iterator; many scans need only the first
_MOST_SCANNED = 1_024
_SCANNED_BYTES = 1 * _MIB
_key_of = itemgetter(0)
_LINKINGS, _BETWEEN_LINKINGS_S = 10, 0.005
_LINKINGS_WITHOUT_ROCKSDB = 2_000  # RocksDB makes no checkpoint of a database with files in two folders
_RUNS = 20  # sorted runs of files before some are merged
_SIMILAR_PERCENT = 100  # maximum size difference of neighbouring runs that are merged
_SPACE_PERCENT = 200  # size of the others, relative to the oldest run, at which all are merged
_FILTER_BITS = 10  # per key
# Divides the slot's memory: maximum size of a database's whole filters.
_WHOLE_FILTERS = 512
_LOOKED_AFTER = 65_536  # entries
_IN_PARTS = (
    "{index_type=kTwoLevelIndexSearch;partition_filters=true;metadata_block_size=4096;"
    "pin_top_level_index_and_filter=true}"
)
_COMPACTING = 1  # threads per process
_COMPACTING_AT_A_CLOSE = 16
_NO_LIMIT = 1 << 62  # bytes
_NEVER = 1 << 30  # runs of files
_MANY_RUNS = 100  # runs; from here on writers pause for compactions
_REST_S = 0.005  # per write
_AT_WORK = ("num-running-flushes", "mem-table-flush-pending", "num-running-compactions", "compaction-pending")


class SlotMemory:
    """Block cache and memtables of a slot's databases, and memory held by operators.

    Operators that hold memory share half of `total_bytes` equally. For any thread.
    """

    def __init__(self, total_bytes: int) -> None:
        if total_bytes < 8 * _MIB:
            raise InvalidJob(f"{total_bytes} bytes are too little for the state of a slot: give it 8 MiB or more")
        self.total_bytes = total_bytes
        self._shared: tuple[Any, Any] | None = None
        self._holders = 0
        self._closers = 0
        self._guard = threading.Lock()  # guards the three attributes above and `compactions_held`
        self.compactions_held = False

    def hold(self) -> "HeldMemory":
        self._hold(1)
        return HeldMemory(self)

    @property
    def share_bytes(self) -> int:
        return self.total_bytes // 2 // max(1, self._holders)

    def shared(self) -> tuple[Any, Any]:
        with self._guard:
            if self._shared is None:
                from rocksdict import Cache, WriteBufferManager

                cache = Cache(self._database_bytes)
                # Memtables count towards the cache. The writer, the slot's loop, is never stalled.
                manager = WriteBufferManager.new_write_buffer_manager_with_cache(self.total_bytes // 3, False, cache)
                self._shared = (cache, manager)
            return self._shared

    def hold_compactions(self, held: bool) -> None:
        """Prevents new, not running compactions until a database is opened or closed."""
        if self._shared is not None:
            with self._guard:
                self.compactions_held = held
                self._set_threads()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Starts all queued compactions, because a close waits for those of the database."""
        with self._guard:
            self.compactions_held = False
            self._closers += 1
            self._set_threads()
        try:
            yield
        finally:
            with self._guard:
                self._closers -= 1
                self._set_threads()

    def _set_threads(self) -> None:
        from rocksdict import Env

        threads = _COMPACTING_AT_A_CLOSE if self._closers else 0 if self.compactions_held else _COMPACTING
        Env().set_low_priority_background_threads(threads)

    @property
    def _database_bytes(self) -> int:
        return self.total_bytes - (self.total_bytes // 2 if self._holders else 0)

    def _hold(self, more: int) -> None:
        with self._guard:
            self._holders += more
            if self._shared is not None:
                self._shared[0].set_capacity(self._database_bytes)


class HeldMemory:
    def __init__(self, memory: SlotMemory) -> None:
        self._memory: SlotMemory | None = memory

    def share_bytes(self) -> int:
        return 0 if self._memory is None else self._memory.share_bytes

    def release(self) -> None:
        if self._memory is not None:
            self._memory._hold(-1)
            self._memory = None


class RocksDbKv:
    """`with_holes`: for reading files with holes (`backend/stored_part`). `once`: after `close` only
    checkpoints of the database are opened (`small_files`).
    """

    kind = "rocksdb"

    def __init__(self, directory: Path, memory: SlotMemory, *, with_holes: bool = False, once: bool = False) -> None:
        from rocksdict import Checkpoint, Rdict, WriteBatch, WriteOptions

        self._new_batch = WriteBatch
        self._checkpoint = Checkpoint
        self._directory = directory
        self._memory = memory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._small = small = SmallFiles(directory, once)
        try:
            _write_config(small.place)
            self._db: Any = Rdict(str(small.place), _options(memory, with_holes, directory if small.apart else None))
        except Exception as error:
            small.close()
            raise trouble(f"cannot open the state database in {directory}", error) from error
        unlogged = WriteOptions()
        unlogged.disable_wal = True
        self._db.set_write_options(unlogged)
        self._get = self._db.get
        self._whole_filter_bytes = memory.total_bytes // _WHOLE_FILTERS
        self._in_parts = False
        self._written = 0  # entries since the last check of the filters
        self._is_behind = False  # compactions, at the last flush
        # Directory and files of the last checkpoint; None after a write.
        self._last: tuple[Path, list[str]] | None = None
        self._live = "", LiveFiles()  # name and live files of the MANIFEST

    def get(self, key: bytes) -> bytes | None:
        return self._get(key)  # type: ignore[no-any-return]

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self._get(keys) if keys else []

    def write(self, entries: Sequence[Entry]) -> None:
        batch = self._new_batch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in entries:
            if value is None:
                delete(key)
            else:
                put(key, value)
        self._last = None
        with self._named_trouble("write to"):
            self._db.write(batch)
        if self._is_behind and not self._memory.compactions_held:
            time.sleep(_REST_S)  # RocksDB would pause with the interpreter's lock held
        self._written += len(entries)
        if self._written >= _LOOKED_AFTER:
            self._written = 0
            self._may_part_filters()

    def delete_range(self, start: bytes, end: bytes) -> None:
        """A single tombstone: many slow down reads."""
        self._last = None
        with self._named_trouble("write to"):
            self._db.delete_range(start, end)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """An iterator keeps replaced files, and a scan may take hours: each batch has a new iterator."""
        most = _FIRST_SCANNED
        while start < end:
            found, start = self._scanned(start, end, most)
            yield from found
            most = min(4 * most, _MOST_SCANNED)

    def _scanned(self, start: bytes, end: bytes, most: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
        found: list[tuple[bytes, bytes]] = []
        size, wanted = 0, _FIRST_SCANNED
        # ReadOptions.set_iterate_upper_bound is unusable: rocksdict frees the bound while the iterator lives.
        entries = self._db.items(from_key=start)
        while some := list(islice(entries, min(wanted, most - len(found)))):
            if some[-1][0] >= end:
                return found + some[: bisect_left(some, end, key=_key_of)], end
            found += some
            size += sum([len(data) for _, data in some])
            if len(found) == most or size >= _SCANNED_BYTES:
                return found, some[-1][0] + b"\0"
            wanted *= 4
        behind = found[-1][0] + b"\0" if found else start
        return found, behind if self._goes_on(behind) else end

    def _goes_on(self, start: bytes) -> bool:
        """Raises at an unreadable block, where iterations just end."""
        iterator = self._db.iter()
        iterator.seek(start)
        if iterator.valid():
            return True
        with self._named_trouble("read"):
            iterator.status()
        return False

    @contextmanager
    def _named_trouble(self, action: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise trouble(f"cannot {action} the state database in {self._directory}", error) from error

    def flush(self) -> None:
        if self._last is not None:
            return
        with self._named_trouble("flush"):
            self._db.flush()
        self._is_behind = self._number("num-files-at-level0") >= _MANY_RUNS
        self._may_part_filters()

    def _may_part_filters(self) -> None:
        """Filters and indexes of future files are split once the database is large.

        RocksDB changes options in place, so the change waits until no file is being written; the single writer starts
        none meanwhile. Design: docs/design/side-by-side-databases.md.
        """
        if self._in_parts or self._number("estimate-num-keys") * _FILTER_BITS // 8 < self._whole_filter_bytes:
            return
        if not any(map(self._number, _AT_WORK)):
            self._db.set_options({"block_based_table_factory": _IN_PARTS})
            self._in_parts = True

    def _number(self, name: str) -> int:
        return int(self._db.property_int_value(f"rocksdb.{name}") or 0)

    def checkpoint(self, directory: Path) -> None:
        """Links files; without a write since the last checkpoint, that checkpoint's files again.

        RocksDB's own checkpoint, the last resort, holds the interpreter's lock during each sync.
        """
        last = self._last  # `compact` may reset `self._last` meanwhile
        if last is None or not self._linked_again(*last, directory):
            self.flush()
            if not self._linked_soon(directory):
                try:
                    self._checkpoint(self._db).create_checkpoint(str(directory))
                except Exception as error:
                    raise trouble(f"cannot link the files of the state database into {directory}", error) from error
                for options in directory.glob("OPTIONS-*"):  # unused: each open passes all options
                    options.unlink()
            self._last = directory, os.listdir(directory)
        directory.chmod(stat.S_IRWXU)

    def _linked_soon(self, directory: Path) -> bool:
        if directory.exists():
            return False
        in_two_folders = self._small.place != self._directory
        for _ in range(_LINKINGS_WITHOUT_ROCKSDB if in_two_folders else _LINKINGS):
            try:
                if self._linked(directory):
                    return True
            except UnknownLayout:
                self._live = "", LiveFiles()
                return False
            except FileNotFoundError:  # compaction has replaced a file
                shutil.rmtree(directory, ignore_errors=True)
            time.sleep(_BETWEEN_LINKINGS_S)
        return False

    def _linked(self, directory: Path) -> bool:
        current = (self._small.place / _CURRENT).read_bytes()
        name = current.decode().strip()
        content = (self._small.place / name).read_bytes()
        if self._live[0] != name:
            self._live = name, LiveFiles()
        if not self._live[1].read(content):
            return False
        names = {f"{number:06d}.sst" for number in self._live[1].numbers}
        if {each["name"].lstrip("/") for each in self._db.live_files()} != names:
            return False
        directory.mkdir(mode=0o700)
        for each in names:
            link_or_copy(self._directory / each, directory / each)
        (directory / name).write_bytes(content)
        (directory / _CURRENT).write_bytes(current)
        return True

    def _linked_again(self, last: Path, names: list[str], directory: Path) -> bool:
        """Returns False if the owner of the last checkpoint has deleted a file."""
        directory.mkdir(mode=0o700)
        try:
            for name in names:
                link_or_copy(last / name, directory / name)
        except FileNotFoundError:
            shutil.rmtree(directory)
            return False
        self._last = directory, names
        return True

    def compact(self) -> None:
        with self._named_trouble("compact"):
            self._db.compact_range(None, None)
        self._last = None  # the next checkpoint must not link the old files

    @property
    def compacts(self) -> bool:
        return self._number("num-running-compactions") > 0

    def memory_bytes(self) -> int:
        return self._number("cur-size-all-mem-tables")

    @property
    def closes_soon(self) -> bool:
        return not self._memory.compactions_held

    def close(self) -> None:
        try:
            with self._memory.closing():
                self._db.close()
        except Exception as error:
            # rocksdict flushes first. A full disk is no error: entries in no checkpoint are useless.
            if not is_full_disk(error):
                raise trouble(f"cannot close the state database in {self._directory}", error) from error
        finally:
            self._small.close()


def _write_config(directory: Path) -> None:
    config = directory / CONFIG_FILE
    config.unlink(missing_ok=True)  # may be a link to another place
    config.write_text(_OUR_CONFIG)


def _options(memory: SlotMemory, with_holes: bool, tables_in: Path | None) -> Any:
    from rocksdict import (
        BlockBasedOptions,
        DBCompactionStyle,
        DBCompressionType,
        DBPath,
        Env,
        Options,
        UniversalCompactionStopStyle,
        UniversalCompactOptions,
    )

    cache, manager = memory.shared()
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_block_size(16 << 10)
    if not with_holes:  # a filter would be read whole
        tables.set_bloom_filter(_FILTER_BITS, False)
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    tables.set_format_version(5)
    environment = Env()
    environment.set_high_priority_background_threads(2)  # flushes, for which checkpoints wait
    environment.lower_thread_pool_cpu_priority()  # compaction must not slow down the loop
    options = Options(raw_mode=True)
    options.set_env(environment)
    if tables_in is not None:
        options.set_db_paths([DBPath(str(tables_in), _NO_LIMIT)])
        options.set_db_log_dir(str(tables_in))
    options.create_if_missing(True)
    options.set_disable_auto_compactions(with_holes)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_manager(manager)
    options.set_write_buffer_size(16 * _MIB)
    options.set_max_write_buffer_number(4)
    options.set_target_file_size_base(32 * _MIB)
    # Runs are merged late: compacted files are uploaded again (docs/design/side-by-side-databases.md).
    universal = UniversalCompactOptions()
    universal.max_size_amplification_percent = _SPACE_PERCENT
    universal.stop_style = UniversalCompactionStopStyle.similar()
    universal.size_ratio = _SIMILAR_PERCENT
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(universal)
    options.set_level_zero_file_num_compaction_trigger(_RUNS)
    # Never slows down the writer, the loop: a checkpoint's flush would wait for compactions, which have the lowest
    # priority or are held. Many runs only slow look-ups.
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(2 * _COMPACTING)  # half of them flushes
    options.set_max_open_files(512)
    options.set_max_file_opening_threads(1)  # RocksDB makes new threads at each open
    options.set_avoid_unnecessary_blocking_io(True)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 * _MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 << 10)
    options.set_max_manifest_file_size(64 << 10)  # part of every snapshot
    return options
