"""Savepoint: a visible checkpoint, copied to a self-contained folder. Pure.

    <savepoint>/data/<checkpoint>-<token>-<id>/<number>     snapshot files, as the checkpoint had them
    <savepoint>/savepoint.json                              written last: without this file no savepoint

File names are relative: a copy of the folder is a copy of the savepoint. Design: docs/design/savepoints.md.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from barrier_runtime.coordinator.log.manifest import MANIFEST_FORMAT, Manifest
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import PENDING, FileRef, OperatorSnapshot
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.versioned import Format, VersionedDecoder

SAVEPOINT_VERSION = 1
SAVEPOINT_FILE = "savepoint.json"
DATA_PREFIX = "data/"
CLAIM_FILE = "claimed-by"
_OBJECT = re.compile(r"data/[0-9]+-[0-9]+-[A-Za-z0-9][A-Za-z0-9_.-]{0,127}/[0-9]+")


class Savepoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A savepoint's file. `final`: the job stopped with it.

    `taken`: the checkpoint, with file names relative to the savepoint's folder.
    """

    version: int = SAVEPOINT_VERSION
    id: str  # of the answered request; never used twice
    taken: Manifest
    final: bool = False
    drained: bool | msgspec.UnsetType = msgspec.UNSET  # of the first releases; now in the manifest


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Owner of a savepoint. `store`: of the owner's checkpoints. `savepoint`: id."""

    version: int = 1
    job: str
    store: str = ""  # URL; empty in claims of earlier releases, as `savepoint`
    savepoint: str = ""

    @property
    def place(self) -> str:
        return f" (its checkpoints are in {shown(self.store)})" if self.store else ""

    def __str__(self) -> str:
        return f"job {self.job[:100]!r}"


@dataclass(frozen=True)
class SavepointCopy:
    """Plan of a copy: key in the job's store -> key in the savepoint's folder."""

    objects: Mapping[str, str]
    savepoint: Savepoint


_ENCODER = msgspec.json.Encoder(order="deterministic")
_JSON: msgspec.json.Decoder[Savepoint] = msgspec.json.Decoder(Savepoint)
_FORMAT = Format("savepoint {}", SAVEPOINT_VERSION, damaged="copy it again from where it is intact, or take another")
_DECODER = VersionedDecoder(_FORMAT, _JSON)


_CLAIM = msgspec.json.Decoder(Claim)


def encode_claim(claim: Claim) -> bytes:
    return _ENCODER.encode(claim)


def decode_claim(data: bytes) -> Claim:
    """Other bytes are a job's name, by an earlier release."""
    try:
        return _CLAIM.decode(data)
    except msgspec.MsgspecError:
        return Claim(job=data.decode(errors="replace"))


def encode_savepoint(savepoint: Savepoint) -> bytes:
    return _ENCODER.encode(savepoint)


def decode_savepoint(where: str, data: bytes) -> Savepoint:
    savepoint = _DECODER.decode(data, where)
    MANIFEST_FORMAT.check(savepoint.taken.version, where)
    if savepoint.drained is True and not savepoint.taken.drained_by:
        taken = msgspec.structs.replace(savepoint.taken, drained=f"savepoint-{savepoint.id}")
        savepoint = msgspec.structs.replace(savepoint, taken=taken)
    for snapshot in savepoint.taken.operators:
        for ref in snapshot.files:
            inside = ref.key is None or _OBJECT.fullmatch(ref.key) is not None
            if not inside or (ref.key is None) == (ref.inline is None):
                raise Corrupt(
                    f"savepoint {where} names the object {(ref.key or '(none)')[:200]!r} for operator "
                    f"{snapshot.operator}, which is none of its own: it was written or changed by something else; copy "
                    "it again from where it is intact, or take another"
                )
    return savepoint


def savepoint_copy(manifest: Manifest, sinks: Collection[str], id: str, *, final: bool = False) -> SavepointCopy:
    """`sinks`: operators that commit."""
    settled = tuple(_settled(snapshot) if snapshot.operator in sinks else snapshot for snapshot in manifest.operators)
    keys = sorted({ref.key for snapshot in settled for ref in snapshot.files if ref.key is not None})
    folder = f"{DATA_PREFIX}{manifest.checkpoint}-{manifest.token}-{id}/"  # another attempt has other names
    objects = {key: f"{folder}{number}" for number, key in enumerate(keys, 1)}
    taken = msgspec.structs.replace(manifest, operators=tuple(with_keys(each, objects) for each in settled))
    return SavepointCopy(objects, Savepoint(id=id, taken=taken, final=final))


def imported(
    savepoint: Savepoint, objects: Mapping[str, str], job: str, checkpoint: int, token: int, lineage: str, wall_ms: int
) -> Manifest:
    """Returns the savepoint as a checkpoint of `job`.

    `objects`: present keys of the files in the job's store.
    """
    return msgspec.structs.replace(
        savepoint.taken,
        job=job,
        lineage=lineage,
        checkpoint=checkpoint,
        token=token,
        created_wall_ms=wall_ms,
        operators=tuple(with_keys(snapshot, objects) for snapshot in savepoint.taken.operators),
    )


def with_keys(snapshot: OperatorSnapshot, objects: Mapping[str, str]) -> OperatorSnapshot:
    def moved(ref: FileRef) -> FileRef:
        return ref if ref.key is None else msgspec.structs.replace(ref, key=objects[ref.key])

    keyed = snapshot.keyed
    if keyed is not None:
        keyed = msgspec.structs.replace(keyed, files=tuple(map(moved, keyed.files)))
    in_flight = tuple(msgspec.structs.replace(each, file=moved(each.file)) for each in snapshot.in_flight)
    named = {name: moved(ref) for name, ref in snapshot.objects.items()}
    return msgspec.structs.replace(snapshot, keyed=keyed, in_flight=in_flight, objects=named)


def in_savepoint(key: str) -> bool:
    return key in (SAVEPOINT_FILE, CLAIM_FILE) or _OBJECT.fullmatch(key) is not None


def files_by_object(manifest: Manifest) -> dict[str, set[FileRef]]:
    found: dict[str, set[FileRef]] = {}
    for snapshot in manifest.operators:
        for ref in snapshot.files:
            if ref.key is not None:
                found.setdefault(ref.key, set()).add(ref)
    return found


def object_sizes(manifest: Manifest) -> dict[str, int]:
    """Returns each object's minimum size in bytes."""
    sizes: dict[str, int] = {}
    for snapshot in manifest.operators:
        for ref in snapshot.files:
            if ref.key is not None:
                sizes[ref.key] = max(sizes.get(ref.key, 0), ref.offset + ref.size)
    return sizes


def _settled(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    return msgspec.structs.replace(
        snapshot,
        values={name: value for name, value in snapshot.values.items() if name != PENDING},
        objects={name: ref for name, ref in snapshot.objects.items() if name != PENDING},
    )
