"""Rows outside memory: Arrow IPC streams in values of snapshots, and mapped files without a name.

A damaged stream is refused with an error that names the place. The kernel caches a file's pages as memory allows; a
file vanishes with the last reader, however the process ends.
"""

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyarrow as pa

from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.versioned import Format


def stream_of(rows: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def batches_of(stream: bytes, format: Format, where: str) -> list[pa.RecordBatch]:
    try:
        return pa.ipc.open_stream(stream).read_all().to_batches()  # type: ignore[no-any-return]
    except (pa.ArrowException, OSError) as error:
        raise format.unreadable(error, where) from error


def mapped_file(directory: Path, write: Callable[[IO[bytes]], None], where: str) -> mmap.mmap:
    """`write` writes at least a byte. `where`: the operator, for errors."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            write(file)
            file.flush()
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except OSError as error:
        raise Unavailable(
            f"{where}: rows that do not fit in memory could not be written to {directory} ({error}): "
            "free some space there, or give the job more state_memory_mb"
        ) from error
