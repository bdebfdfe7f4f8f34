"""Manifest of a checkpoint. Canonical JSON.

A manifest counts only if a COMPLETE record names the key and sha256.

Decided checkpoints: their manifests, and how long they may be restored.

A small manifest is inside the COMPLETE record (I2). A larger manifest is an object, stored before the record with the
manifest's hash. FENCE and COMPLETE list the positions of kept decisions (`kept`).

| state of checkpoint n | shown by                                 | restored by | files of n                          |
|-----------------------|------------------------------------------|-------------|-------------------------------------|
| pending               | nothing in the log                       | nobody      | swept once the checkpoint has ended |
| decided, kept         | the newest FENCE or COMPLETE is n's, or  | any start   | stay                                |
|                       | lists n's position                       |             |                                     |
| dropped               | that record does not list n's position   | nobody      | deleted once no slot can use them   |
| discarded             | FINISH with `discarded`                  | nobody      | deleted at once                     |

A put with an unknown outcome drops nothing yet (I9). Crash points: docs/design/leadership.md.

Records of earlier releases list nothing: their checkpoints are kept while the manifests are stored.
"""

import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from barrier_runtime.coordinator.log.records import NO_RECORD, Complete, Fence, Finish, Record
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, ManifestRef, SubtaskId
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.plan import is_in_flight_file, is_snapshot_file, is_value_name
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import Format, VersionedDecoder, check_sha256

MANIFEST_VERSION = 1


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int = MANIFEST_VERSION
    kind: Literal["checkpoint"] = "checkpoint"
    job: str
    lineage: str
    checkpoint: int
    token: int
    created_wall_ms: int
    parallelism: int
    max_parallelism: int
    operators: tuple[OperatorSnapshot, ...]
    ended: tuple[SubtaskId, ...] = ()  # subtasks at the end of their input
    parent_position: int  # head of the log at the write
    parent_sha256: str
    options: CheckpointOptions = CheckpointOptions()
    drained: str | msgspec.UnsetType = msgspec.UNSET  # see `drained_by`

    @property
    def drained_by(self) -> str:
        """Run that ended the sources early; "": none."""
        return self.drained if isinstance(self.drained, str) else ""


@dataclass(frozen=True)
class DecidedManifest:
    key: str
    sha256: str
    manifest: Manifest
    inside: str = ""  # key of the log record with the manifest; "": the manifest is an object
    _own_files: dict[str, frozenset[str]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def own_files(self, data_prefix: str) -> frozenset[str]:
        if data_prefix not in self._own_files:
            self._own_files[data_prefix] = own_files(self.manifest, data_prefix)
        return self._own_files[data_prefix]

    @property
    def ref(self) -> ManifestRef:
        return ManifestRef(self.inside or self.key, self.sha256)


_ENCODER = msgspec.json.Encoder(order="deterministic")
_JSON: msgspec.json.Decoder[Manifest] = msgspec.json.Decoder(Manifest)
MANIFEST_FORMAT = Format("manifest {}", MANIFEST_VERSION, damaged="restore it from a backup of the store")
_DECODER = VersionedDecoder(MANIFEST_FORMAT, _JSON)


def encode_manifest(manifest: Manifest) -> bytes:
    return _ENCODER.encode(manifest)


def decode_manifest(key: str, data: bytes) -> Manifest:
    return _DECODER.decode(data, key)


def verified_manifest(key: str, data: bytes, sha256: str) -> Manifest:
    """As `decode_manifest`; raises `Corrupt` for another hash."""
    check_sha256(key, data, sha256)
    return decode_manifest(key, data)


def check_files(key: str, manifest: Manifest, paths: Paths) -> None:
    """Raises `Corrupt` for wrong names, and for files neither in the manifest nor in objects of the job."""
    for snapshot in manifest.operators:
        for ref, named in _with_names_checked(snapshot):
            own = ref.key is not None and _is_own(paths, ref.key) and ref.inline is None
            inside = ref.key is None and ref.inline is not None
            if not named or not (own or inside) or ref.offset < 0 or ref.size < 0:
                raise Corrupt(
                    f"manifest {key} lists the file {ref.name[:200]!r} of operator {snapshot.operator}, subtask "
                    f"{snapshot.subtask}, in object {(ref.key or '(none)')[:200]!r}, which no snapshot of job "
                    f"{paths.job} can be: it was written or changed by something else; restore it from a backup of "
                    "the store"
                )


def _with_names_checked(snapshot: OperatorSnapshot) -> Iterator[tuple[FileRef, bool]]:
    for ref in () if snapshot.keyed is None else snapshot.keyed.files:
        yield ref, is_snapshot_file(ref.name)
    for each in snapshot.in_flight:
        yield each.file, is_in_flight_file(each.file.name)
    for name, ref in snapshot.objects.items():
        yield ref, ref.name == name and is_value_name(name) and name not in snapshot.values


def _is_own(paths: Paths, key: str) -> bool:
    return paths.data_token(key) is not None


def own_files(manifest: Manifest, data_prefix: str) -> frozenset[str]:
    """Keys of snapshot files, without a foreign savepoint's."""
    return frozenset(
        ref.key
        for snapshot in manifest.operators
        for ref in snapshot.files
        if ref.key is not None and ref.key.startswith(data_prefix)
    )


INLINE_BYTES = 16 << 10  # compressed: the log keeps thousands of records
_UNPACKED_BYTES = 256 << 10  # decompressed: less than a message carries


def packed(data: bytes) -> bytes:
    """Returns b"" for a manifest too large for a record."""
    if len(data) > _UNPACKED_BYTES:
        return b""
    compressed = zlib.compress(data)
    return compressed if len(compressed) <= INLINE_BYTES else b""


def inline_data(record: Complete) -> bytes | None:
    """Returns None if the manifest is an object. Raises `Corrupt`."""
    if not record.inline:
        return None
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(record.inline, _UNPACKED_BYTES)
    except zlib.error as error:
        raise _damaged(record, str(error)) from error
    if not unpacking.eof or unpacking.unused_data:
        raise _damaged(record, f"it is no whole manifest of at most {_UNPACKED_BYTES} bytes")
    return data


def _damaged(record: Complete, why: str) -> Corrupt:
    return Corrupt(
        f"the manifest inside the log record of checkpoint {record.checkpoint} is damaged ({why}): restore the record "
        "from a backup of the store"
    )


def manifest_data(record: Complete, read: Callable[[str], bytes | None]) -> bytes | None:
    """Unverified bytes; None if `read` finds none: the checkpoint may have been dropped."""
    inside = inline_data(record)
    return read(record.manifest) if inside is None else inside


def load_manifest(record: Complete, read: Callable[[str], bytes | None]) -> Manifest | None:
    data = manifest_data(record, read)
    return None if data is None else verified_manifest(record.manifest, data, record.sha256)


def decided_data(record: Complete, read: Callable[[str], bytes | None]) -> tuple[str, bytes | None]:
    try:
        return record.manifest, manifest_data(record, read)
    except Corrupt:
        return record.manifest, record.inline


def kept_after(position: int, record: Record) -> tuple[int, ...] | None:
    """Positions kept after `record`, the last FENCE or COMPLETE; None: unknown, by an earlier release."""
    if not record.lists_kept:
        return None
    if isinstance(record, Complete):
        return (*record.kept, position)
    return record.kept if isinstance(record, Fence) else None


def is_kept(position: int, kept: Container[int] | None) -> bool:
    return kept is None or position in kept


def kept_by_fence(known: Sequence[int], restored: int, retained: int) -> tuple[int, ...]:
    """The last positions of `known`, always the newest (a later start may need that), then `restored`."""
    others = [position for position in known if position != restored]
    room = retained if restored == NO_RECORD else retained - 1
    kept = others[len(others) - min(len(others), room) :]
    if others and max(others) > restored and max(others) not in kept:
        kept = [max(others), *kept]
    return tuple(kept) if restored == NO_RECORD else (*kept, restored)


def kept_by_complete(known: Sequence[int], retained: int) -> tuple[int, ...]:
    return tuple(known)[len(known) - min(len(known), retained - 1) :]


def is_discarded(head: Record) -> bool:
    return isinstance(head, Finish) and head.discarded
