"""Changes a job's stored data with all hashes made anew: the power of an attacker who can write to the bucket.

The log is a chain of hashes, so a change of one record (or of the record's manifest) requires all later records to be
written anew.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from barrier_runtime.coordinator.log.decision_log import LogEntry
from barrier_runtime.coordinator.log.manifest import manifest_data
from barrier_runtime.coordinator.log.records import Complete, Finish, Record, decode_record, encode_record
from barrier_runtime.state.store.paths import Paths


class Bomb:
    """Leaves a file behind where the pickle is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (open, (self.trace, "w"))  # type: ignore[return-value]


class Doctor:
    def __init__(self, root: Path, job: str) -> None:
        self.root = root
        self.paths = Paths(job)

    @property
    def log(self) -> list[Path]:
        return sorted((self.root / self.paths.log_prefix).iterdir())

    def entries(self) -> list[LogEntry]:
        found = []
        for path in self.log:
            data = path.read_bytes()
            record = decode_record(path.name, data)
            found.append(LogEntry(int(path.stem), record, hashlib.sha256(data).hexdigest()))
        return found

    def last_complete(self) -> Complete:
        return [entry.record for entry in self.entries() if isinstance(entry.record, Complete)][-1]

    def manifest_bytes(self) -> bytes:
        data = manifest_data(self.last_complete(), lambda key: (self.root / key).read_bytes())
        assert data is not None
        return data

    def manifest_path(self) -> Path:
        """Path of the last checkpoint's manifest, which is a separate object."""
        path = self.root / self.last_complete().manifest
        if not path.exists():
            self.replace_manifest(self.manifest_bytes())
        return path

    def change_records(self, change: Callable[[Record], Record]) -> None:
        """Rewrites the whole log with each record changed, the chain of hashes intact."""
        parent = ""
        for path in self.log:
            record = change(decode_record(path.name, path.read_bytes()))
            data = encode_record(msgspec.structs.replace(record, parent_sha256=parent))
            path.write_bytes(data)
            parent = hashlib.sha256(data).hexdigest()

    def without_its_end(self) -> None:
        """Removes the end of the log, as if the job had been killed before the record of its end."""
        if isinstance(self.entries()[-1].record, Finish):
            self.log[-1].unlink()

    def replace_manifest(self, data: bytes) -> None:
        """Replaces the last checkpoint's manifest by `data`, and its hash in the log."""
        last = self.last_complete()
        (self.root / last.manifest).parent.mkdir(parents=True, exist_ok=True)
        (self.root / last.manifest).write_bytes(data)

        def change(record: Record) -> Record:
            if isinstance(record, Complete) and record.checkpoint == last.checkpoint:
                return msgspec.structs.replace(record, sha256=hashlib.sha256(data).hexdigest(), inline=b"")
            return record

        self.change_records(change)

    def change_manifest(self, change: Callable[[dict], None]) -> None:
        """Passes the last checkpoint's manifest as JSON data to `change`, which alters the data in place."""
        manifest = msgspec.json.decode(self.manifest_path().read_bytes())
        change(manifest)
        self.replace_manifest(msgspec.json.encode(manifest))


def files_of(manifest: dict) -> list[dict]:
    """Every snapshot file the manifest lists."""
    return [file for snapshot in manifest["operators"] if snapshot["keyed"] for file in snapshot["keyed"]["files"]]
