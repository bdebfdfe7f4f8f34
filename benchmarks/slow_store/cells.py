"""Cells of the slow store's benchmark by name: those of the table, and the grid."""

import dataclasses
from collections.abc import Callable

from benchmarks.slow_store.delay import EXPRESS, NONE, Delay
from benchmarks.slow_store.episodes import calls, kills, reading, start
from benchmarks.slow_store.flink import flink
from benchmarks.slow_store.place import Settings
from benchmarks.slow_store.result import CellResult
from benchmarks.slow_store.streams import postgres_behind, stream
from benchmarks.slow_store.tables import file_sizes, iceberg, iceberg_on_store

Cell = Callable[[Settings], CellResult]

STORES: dict[str, Delay | None] = {"folder": None, "S3": NONE, "S3 Express": EXPRESS}  # and "S3, slow": settings.delay
_SLOW = "S3, slow"


def _stream_cell(sink: str, store: str, interval_s: float, slots: int, processes: bool = False) -> Cell:
    """`processes`: coordinator and slots are a process each, regardless of the settings."""

    def cell(settings: Settings) -> CellResult:
        if processes:
            settings = dataclasses.replace(settings, processes=True)
        return stream(settings, sink, settings.delay if store == _SLOW else STORES[store], interval_s, slots)

    return cell


def _reading_cell(kind: str, slots: int, slow_store: bool) -> Cell:
    return lambda settings: reading(settings, kind, slots, settings.delay if slow_store else None)


CHOSEN: dict[str, Cell] = {
    "files, 1 s": _stream_cell("files", _SLOW, 1.0, 2),
    "files, 0.2 s": _stream_cell("files", _SLOW, 0.2, 2),
    "files, 0.1 s": _stream_cell("files", _SLOW, 0.1, 2),
    "Delta, 1 s": _stream_cell("delta", _SLOW, 1.0, 2),
    "Iceberg, commits": lambda settings: iceberg(settings, settings.table_commits),
    "Iceberg on the store, 300 commits": lambda settings: iceberg_on_store(settings, 300),
    "Iceberg on the store, 20,000 commits": lambda settings: iceberg_on_store(settings, 20_000),
    "PostgreSQL behind 5 ms, 1 s": lambda settings: postgres_behind(settings, EXPRESS, 1.0),
    "PostgreSQL behind 5 ms, 0.1 s": lambda settings: postgres_behind(settings, EXPRESS, 0.1),
    "CPU of requests": calls,
    "restart, 45 records": lambda settings: start(settings, 0),
    "restart, long log": lambda settings: start(settings, settings.log_records),
    "small files, 1 slot": _reading_cell("small", 1, True),
    "small files, 4 slots": _reading_cell("small", 4, True),
    "JSON lines, 1 slot": _reading_cell("jsonl", 1, True),
    "JSON lines from a folder, 1 slot": _reading_cell("jsonl", 1, False),
    "Parquet, 1 slot": _reading_cell("parquet", 1, True),
    "Parquet from a folder, 1 slot": _reading_cell("parquet", 1, False),
    "kill of a slot": lambda settings: kills(settings, settings.delay),
    "kill of a slot, folder": lambda settings: kills(settings, None),
    "Flink, files, 1 s": lambda settings: flink(settings, 1.0),
    "Flink, files, 0.2 s": lambda settings: flink(settings, 0.2),
}

NAMED: dict[str, Cell] = {  # run only if `--only` names them; their targets are for --seconds 900
    "Delta, file sizes": lambda settings: file_sizes(settings, "delta"),
    "Iceberg, file sizes": lambda settings: file_sizes(settings, "iceberg"),
}

OF_NO_TREE = (
    "Flink, files, 1 s",
    "Flink, files, 0.2 s",
)  # without our runtime: not measured for another checkout

GRID: dict[str, Cell] = {
    f"{sink}, {store}, {interval_s:g} s, {slots} slots": _stream_cell(sink, store, interval_s, slots, processes=True)
    for sink in ("files", "delta", "kafka", "postgres")
    for store in (*STORES, _SLOW)
    for interval_s in (0.1, 0.2, 1.0, 10.0)
    for slots in (2, 8)
}
