"""Files to read in the slow store's cells: many small files; few large JSON lines and Parquet files."""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_ROW_GROUPS = 40
_ROWS_OF_A_SMALL_FILE = 3


@dataclass(frozen=True)
class Input:
    """Files in a folder of this machine."""

    folder: Path
    files: int
    rows: int
    bytes: int


def small_files(folder: Path, files: int) -> Input:
    made = folder / f"small-{files}"
    if not made.exists():
        _fill(made, {f"{number:05d}.jsonl": _lines(number, _ROWS_OF_A_SMALL_FILE) for number in range(files)})
    return _found(made, files * _ROWS_OF_A_SMALL_FILE)


def jsonl_input(folder: Path, rows: int) -> Input:
    """Two files of `rows` rows each."""
    made = folder / f"jsonl-{rows}"
    if not made.exists():
        _fill(made, {f"{number}.jsonl": _lines(number, rows) for number in range(2)})
    return _found(made, 2 * rows)


def parquet_input(folder: Path, rows: int) -> Input:
    """A file of four times as many rows, which do not compress well, in 40 row groups."""
    made, many = folder / f"parquet-{rows}", 4 * rows
    if not made.exists():
        source = np.random.default_rng(1)
        table = pa.table({"key": source.integers(0, 1 << 40, many), "price": source.random(many)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=max(1, many // _ROW_GROUPS), use_dictionary=False)
        _fill(made, {"0.parquet": sink.getvalue().to_pybytes()})
    return _found(made, many)


def _lines(seed: int, rows: int) -> bytes:
    source = random.Random(seed)
    draw = source.random
    return "".join(f'{{"key":{int(draw() * 1e6)},"price":{draw():.6f}}}\n' for _ in range(rows)).encode()


def _fill(folder: Path, files: dict[str, bytes]) -> None:
    """Writes all files before `folder` gets this name."""
    begun = folder.with_name(f"{folder.name}.begun")
    begun.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (begun / name).write_bytes(data)
    begun.rename(folder)


def _found(folder: Path, rows: int) -> Input:
    sizes = [file.stat().st_size for file in folder.iterdir()]
    return Input(folder, len(sizes), rows, sum(sizes))
