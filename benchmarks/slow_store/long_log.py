"""The store of a job that ran for long: decision log, commit log of the file sink, and the hints of both.

    python -m benchmarks.slow_store.long_log FOLDER RECORDS OUT

A job of this kind has run for a few checkpoints in FOLDER (`ck` and `out`). OUT gets the objects of its log as
MessagePack: RECORDS COMPLETE records behind the first FENCE, each with the predecessor's hash as the runtime writes
records. There are no snapshots: the next run begins with `restore="none"` and `allow_replay`, behind all of these
records. The runtime on the import path writes the records, in that runtime's format.
"""

import re
import sys
from pathlib import Path

import msgspec

from barrier_runtime.connectors.files.sink.block_writer import BlockWriter
from barrier_runtime.connectors.files.sink.commit_blocks import RECORDS
from barrier_runtime.connectors.files.sink.commit_reader import StoredRecords, commits_prefix
from barrier_runtime.connectors.files.sink.commit_record import (
    decode_commit_record,
    encode_commit_record,
    version_at,
)
from barrier_runtime.coordinator.log.records import NO_RECORD, Complete, decode_record, encode_record
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex
from benchmarks.slow_store.job import NAME

_SINK = "out"
_NUMBER = re.compile(r"^(part-)\d+")


def decision_log(folder: Path, records: int) -> dict[str, bytes]:
    """FENCE and COMPLETE records, by key relative to the job's store."""
    paths = Paths(NAME)
    stored = sorted((folder / paths.log_prefix).glob("*.json"))
    found = [(file.read_bytes(), decode_record(file.name, file.read_bytes())) for file in stored]
    (previous, fence), sample = found[0], next(record for _, record in found if isinstance(record, Complete))
    made = {paths.log_record(fence.token): previous}
    position, prior = fence.token + 1, NO_RECORD
    for checkpoint in range(1, records + 1):
        record = msgspec.structs.replace(
            sample,
            put_id=f"made-{checkpoint}",
            parent_sha256=sha256_hex(previous),
            prior_complete=prior,
            checkpoint=checkpoint,
            manifest=paths.manifest(checkpoint, fence.token),
        )
        previous = made[paths.log_record(position)] = encode_record(record)
        prior, position = position, position + 1
    made.update(_hint(getattr(paths, "log_hint", ""), prior))
    return made


def commit_log(folder: Path, records: int) -> dict[str, bytes]:
    """Records and their blocks, by key relative to the sink's folder."""
    prefix = commits_prefix(NAME, _SINK)
    first = folder / prefix / f"{1:020d}.json"
    sample = decode_commit_record(first.read_bytes(), str(first), NAME, _SINK)
    store = MemoryStore()
    stored = StoredRecords(store, NAME, _SINK)
    writer = BlockWriter(stored)
    for checkpoint in range(1, records + 1):
        files = tuple(
            msgspec.structs.replace(file, name=_NUMBER.sub(rf"\g<1>{checkpoint:08d}", file.name))
            for file in sample.files
        )
        record = msgspec.structs.replace(
            sample,
            version=version_at(checkpoint),
            checkpoint=checkpoint,
            highest_checkpoint=checkpoint,
            files=files,
            check="",
        )
        store.put(stored.key(checkpoint), encode_commit_record(record))
        if checkpoint % RECORDS == 0:
            writer.follow(checkpoint)
    made = {each.key: store.get(each.key) for each in store.list(prefix)}
    made.update(_hint(f"{prefix}hint.json", records))
    return made


def _hint(key: str, position: int) -> dict[str, bytes]:
    """A hint in the runtime's format; empty for releases without hints."""
    try:
        from barrier_runtime.coordinator.log.reader import HeadHint
    except ImportError:
        return {}
    store = MemoryStore()
    HeadHint(store, key).follow(position)
    return {each.key: store.get(each.key) for each in store.list("")}


def main() -> None:
    folder, records, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    made = {f"ck/{key}": data for key, data in decision_log(folder / "ck", records).items()}
    made.update({f"out/{key}": data for key, data in commit_log(folder / "out", records).items()})
    out.write_bytes(msgspec.msgpack.encode(made))


if __name__ == "__main__":
    main()
