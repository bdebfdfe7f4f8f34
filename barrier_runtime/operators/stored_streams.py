"""Arrow IPC streams in values of snapshots: read whole, or refused with an error that names the place."""

import pyarrow as pa

from barrier_runtime.state.versioned import Format


def batches_of(stream: bytes, format: Format, where: str) -> list[pa.RecordBatch]:
    """Returns the rows of `stream`. Raises `Corrupt` for an invalid or truncated stream."""
    try:
        return pa.ipc.open_stream(stream).read_all().to_batches()  # type: ignore[no-any-return]
    except (pa.ArrowException, OSError) as error:
        raise format.unreadable(error, where) from error
