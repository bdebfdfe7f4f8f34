"""Arrow IPC streams in values of snapshots: written, and read whole or refused with an error that names the place."""

import pyarrow as pa

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
