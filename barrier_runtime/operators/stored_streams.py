"""Rows that a value of a snapshot has as an Arrow IPC stream: all of them, or an error that names the place."""

import pyarrow as pa

from barrier_runtime.state.versioned import Format


def batches_of(stream: bytes, format: Format, where: str) -> list[pa.RecordBatch]:
    """Raises `Corrupt` for what is no such stream, or a part of one."""
    try:
        return pa.ipc.open_stream(stream).read_all().to_batches()  # type: ignore[no-any-return]
    except (pa.ArrowException, OSError) as error:
        raise format.unreadable(error, where) from error
