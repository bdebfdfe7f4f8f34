"""Expiry of this sink's old snapshots in an Iceberg table, and of files that nobody needs afterwards.

Snapshots of this sink in the main branch expire in a commit of newer rows, unless they are among the newest `keep` or
another branch or a tag needs them. After the commit the sink deletes their manifest lists, and manifests in neither the
next kept snapshot, nor an older snapshot, nor another branch (along a branch a removed manifest does not return). For a
compaction the sink also deletes the replaced data files, unless a kept snapshot is older or outside the main branch. A
process that dies earlier leaves orphans.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

APPLICATION = "barrier-runtime.application"


@dataclass(frozen=True)
class Expired:
    """Expired snapshot. `next`: the following kept snapshot of the main branch.

    `others`: kept snapshots that are older or of other branches.
    """

    snapshot: Snapshot
    next: Snapshot
    others: tuple[Snapshot, ...]


def to_expire(metadata: TableMetadata, owner: str, keep: int) -> list[Expired]:
    """Snapshots to expire of applications that begin with `owner`.

    The snapshot appended next counts among the `keep` newest.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    main = metadata.refs.get(MAIN_BRANCH)
    if main is None or len(by_id) < keep:
        return []
    chain = _ancestry(by_id, main.snapshot_id)  # newest first
    named: set[int] = set()
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH:
            named.update(each.snapshot_id for each in _ancestry(by_id, ref.snapshot_id))
    own = [each for each in chain if _is_of(each, owner)]
    old = {each.snapshot_id for each in own[keep - 1 :]} - named - {main.snapshot_id}
    gone: list[Expired] = []
    stays = chain[0]
    in_main = {each.snapshot_id for each in chain}
    staying = [each for each in by_id.values() if each.snapshot_id not in old]
    for snapshot in chain:
        if snapshot.snapshot_id in old:
            others = (each for each in staying if each.snapshot_id not in in_main or _is_older(each, snapshot))
            gone.append(Expired(snapshot, stays, tuple(others)))
        else:
            stays = snapshot
    return gone


def unneeded_files(expired: Iterable[Expired], io: FileIO) -> list[str]:
    lists: dict[int, set[str]] = {}

    def manifests(snapshot: Snapshot) -> set[str]:
        if snapshot.snapshot_id not in lists:
            lists[snapshot.snapshot_id] = {each.manifest_path for each in snapshot.manifests(io)}
        return lists[snapshot.snapshot_id]

    files: list[str] = []
    for each in expired:
        if not each.others:
            files += _replaced(each.snapshot, io)
        needed = set(manifests(each.next)).union(*(manifests(other) for other in each.others))
        files += sorted(manifests(each.snapshot) - needed)
        files.append(each.snapshot.manifest_list)
    return list(dict.fromkeys(files))


def _replaced(snapshot: Snapshot, io: FileIO) -> list[str]:
    if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
        return []
    return [
        entry.data_file.file_path
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id
    ]


def _is_older(one: Snapshot, other: Snapshot) -> bool:
    """Format version 1 has no sequence numbers."""
    return (one.sequence_number or 0, one.timestamp_ms) < (other.sequence_number or 0, other.timestamp_ms)


def _ancestry(by_id: dict[int, Snapshot], head: int | None) -> list[Snapshot]:
    found: list[Snapshot] = []
    at = by_id.get(head) if head is not None else None
    while at is not None:
        found.append(at)
        at = None if at.parent_snapshot_id is None else by_id.get(at.parent_snapshot_id)
    return found


def _is_of(snapshot: Snapshot, owner: str) -> bool:
    summary = snapshot.summary
    return summary is not None and str(summary.additional_properties.get(APPLICATION, "")).startswith(owner)
