"""Manifest of a checkpoint. Canonical JSON.

A manifest counts only if a COMPLETE record names the key and sha256.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from barrier_runtime.coordinator.log.hashing import check_sha256
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, ManifestRef, SubtaskId
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.plan import is_in_flight_file, is_snapshot_file, is_value_name
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import Format, VersionedDecoder

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
