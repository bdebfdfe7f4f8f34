"""Plans which parts of an operator's snapshots a subtask restores. Pure.

At the same parallelism a subtask opens its own snapshot unchanged. Otherwise the subtask reads the snapshots that
overlap the subtask's range of key groups, and takes the key groups in that range from each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation
from barrier_runtime.state.keys.key_groups import key_group_range
from barrier_runtime.state.snapshots.plan import is_snapshot_file
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, OperatorSnapshot, StateDescription


@dataclass(frozen=True)
class RestorePart:
    """The key groups `first` to `last` (inclusive) of the snapshot of subtask `subtask`."""

    subtask: int
    keyed: KeyedSnapshot
    first: int
    last: int
    state_ids: dict[int, int]  # state id in the snapshot -> state id after the restore


@dataclass(frozen=True)
class RestorePlan:
    key_group_first: int
    key_group_last: int
    max_parallelism: int
    parts: tuple[RestorePart, ...]  # empty: start without state
    states: dict[str, int]  # state name -> state id after the restore
    described: Mapping[str, StateDescription] = field(default_factory=dict)  # states that the snapshots describe

    def adopts(self, kind: str) -> KeyedSnapshot | None:
        """The only snapshot, if a backend of this kind can open it unchanged; None: see `opened_databases`."""
        if len(self.parts) != 1:
            return None
        part = self.parts[0]
        same_range = (part.keyed.key_group_first, part.keyed.key_group_last) == (part.first, part.last)
        same_ids = all(old == new for old, new in part.state_ids.items())
        return part.keyed if same_range and same_ids and part.keyed.backend == kind else None


def plan_restore(
    operator: str, subtask: int, parallelism: int, max_parallelism: int, restored: Sequence[OperatorSnapshot]
) -> RestorePlan:
    """Plans the restore of a subtask.

    Raises `InvalidJob` for another max_parallelism, `Corrupt` for files that no snapshot contains, `ProtocolViolation`
    for a gap or an overlap of the snapshots.
    """
    first, last = key_group_range(subtask, parallelism, max_parallelism)
    overlapping: list[tuple[int, KeyedSnapshot]] = []
    for snapshot in restored:
        if snapshot.keyed is None or snapshot.operator != operator:
            continue
        _check(operator, snapshot.subtask, snapshot.keyed, max_parallelism)
        if snapshot.keyed.key_group_first <= last and snapshot.keyed.key_group_last >= first:
            overlapping.append((snapshot.subtask, snapshot.keyed))
    overlapping.sort(key=lambda pair: pair[1].key_group_first)
    _check_cover(operator, subtask, first, last, [keyed for _, keyed in overlapping])
    states, renumberings = merge_state_ids([keyed.states for _, keyed in overlapping])
    parts = tuple(
        RestorePart(old_subtask, keyed, max(first, keyed.key_group_first), min(last, keyed.key_group_last), renumbering)
        for (old_subtask, keyed), renumbering in zip(overlapping, renumberings, strict=True)
    )
    described: dict[str, StateDescription] = {}
    for _, keyed in overlapping:
        for name, what in keyed.described.items():
            described[name] = _merged(described.get(name, what), what)
    return RestorePlan(first, last, max_parallelism, parts, states, described)


def merge_state_ids(numberings: Sequence[Mapping[str, int]]) -> tuple[dict[str, int], list[dict[int, int]]]:
    """Merges numberings of state names; returns the merged numbering, and the changes of ids of each.

    The ids of the first numbering stay.
    """
    merged: dict[str, int] = {}
    renumberings: list[dict[int, int]] = []
    for numbering in numberings:
        renumbering = {}
        for name, old in sorted(numbering.items(), key=lambda item: item[1]):
            if name not in merged:
                taken = set(merged.values())
                merged[name] = old if old not in taken else max(taken) + 1
            renumbering[old] = merged[name]
        renumberings.append(renumbering)
    return merged, renumberings


def _merged(one: StateDescription, other: StateDescription) -> StateDescription:
    """Merges the descriptions of two subtasks.

    The earlier `since_ms` counts, so that expired entries stay expired.
    """
    if one.ttl is None or other.ttl is None:
        return one if one.ttl is not None else other
    known = [ttl.since_ms for ttl in (one.ttl, other.ttl) if ttl.since_ms is not None]
    return replace(other, ttl=replace(other.ttl, since_ms=min(known, default=None)))


def _check(operator: str, subtask: int, keyed: KeyedSnapshot, max_parallelism: int) -> None:
    if keyed.max_parallelism != max_parallelism:
        raise InvalidJob(
            f"the state of {operator} was written with max_parallelism {keyed.max_parallelism}, but the job now has "
            f"max_parallelism {max_parallelism}: it cannot change in a job's life, set it to {keyed.max_parallelism}"
        )
    for file in keyed.files:
        if not is_snapshot_file(file.name):
            raise Corrupt(
                f"the snapshot of {operator}, subtask {subtask}, lists the file {file.name!r}, which no snapshot "
                "contains: it was written or changed by something else; restore from another checkpoint"
            )
    if len({file.name for file in keyed.files}) != len(keyed.files):
        raise Corrupt(
            f"the snapshot of {operator}, subtask {subtask}, lists a file twice: it was written or changed by "
            "something else; restore from another checkpoint"
        )


def _check_cover(operator: str, subtask: int, first: int, last: int, sources: Sequence[KeyedSnapshot]) -> None:
    expected = first
    for keyed in sources:
        if max(first, keyed.key_group_first) != expected:
            raise ProtocolViolation(
                f"subtask {subtask} of {operator} needs key groups {first} to {last}, but the snapshots it was given "
                f"are wrong from key group {expected} on (the next one begins at {keyed.key_group_first}); please "
                "report this with the checkpoint's manifest"
            )
        expected = keyed.key_group_last + 1
    if sources and expected <= last:
        raise ProtocolViolation(
            f"subtask {subtask} of {operator} needs key groups {first} to {last}, but the snapshots it was given end "
            f"before key group {expected}; please report this with the checkpoint's manifest"
        )
