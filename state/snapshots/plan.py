"""Plans which files of a local checkpoint are uploaded, and which parts of snapshots a subtask restores.

Uploads:

- An SST or a segment is reused only if a *completed* checkpoint of this incarnation has the file, or if the restore
  linked the file: an incarnation may give names of a former incarnation to other bytes.
- MANIFEST, CURRENT and the table of side-by-side databases are always uploaded: same name, other bytes. So is OPTIONS,
  which earlier releases stored.
- Large files become separate objects. Small files are packed into an object or, if tiny in total, into the manifest.
- No other file of a database's folder is uploaded.

Restores: at the same parallelism a subtask opens the same subtask's snapshot unchanged, otherwise takes key groups from
all overlapping snapshots:

| the database …                                                        | is                            | as number |
|-----------------------------------------------------------------------|-------------------------------|-----------|
| of the only snapshot, if that fits unchanged                          | opened unchanged              | the same  |
| of another backend, or with other state ids                           | copied                        | -         |
| with the most key groups, of which at least half stay                 | opened, and narrowed          | 0         |
| with more than `copied_bytes` to copy                                 | opened side by side, narrowed | 1, 2, …   |
| with fewer, or beyond `MOST_BESIDE`                                   | copied into 0                 | -         |

If no database becomes number 0, number 0 is a new, empty database.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation
from barrier_runtime.state.keys.key_groups import key_group_range
from barrier_runtime.state.kv.key_ranges import RANGES_FILE, KeyRange, KeyRanges
from barrier_runtime.state.kv.shard import range_end, range_start
from barrier_runtime.state.scratch import BESIDE, SEGMENT_FILE, database_of, segment_number
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot, StateDescription

_DATABASE_FILE = r"[0-9]{1,20}\.sst|CURRENT|MANIFEST-[0-9]{1,20}|OPTIONS-[0-9]{1,20}"
_SNAPSHOT_FILE = re.compile(
    rf"(?:{BESIDE})?(?:{_DATABASE_FILE})|{re.escape(RANGES_FILE)}|records\.kv|{SEGMENT_FILE.pattern}"
)
_WRITE_AHEAD_LOG = re.compile(r"\d{1,20}\.log")
_VALUE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_IN_FLIGHT_FILE = re.compile(r"in-flight-[0-9]{1,9}\.frames")
_NEVER_CHANGES = re.compile(rf"(?:{BESIDE})?[0-9]{{1,20}}\.sst|{SEGMENT_FILE.pattern}")


@dataclass(frozen=True)
class LocalFile:
    name: str
    size: int  # bytes


@dataclass(frozen=True)
class Thresholds:
    inline_bytes: int = 20_000  # total of a snapshot's inlined files
    pack_bytes: int = 1 << 20  # larger files become separate objects
    value_bytes: int = 4_096  # larger named values become separate objects


@dataclass(frozen=True)
class SnapshotPlan:
    reused: tuple[FileRef, ...]
    alone: tuple[LocalFile, ...]  # an object each
    packed: tuple[LocalFile, ...]  # together in an object
    inline: tuple[LocalFile, ...]  # in the manifest


def is_snapshot_file(name: str) -> bool:
    return _SNAPSHOT_FILE.fullmatch(name) is not None


def in_flight_file(number: int) -> str:
    return f"in-flight-{number}.frames"


def is_in_flight_file(name: str) -> bool:
    return _IN_FLIGHT_FILE.fullmatch(name) is not None


def is_value_name(name: str) -> bool:
    return _VALUE_NAME.fullmatch(name) is not None


def is_immutable(name: str) -> bool:
    return _NEVER_CHANGES.fullmatch(name) is not None


def plan_snapshot(
    files: Sequence[LocalFile], confirmed: Mapping[str, FileRef], thresholds: Thresholds | None = None
) -> SnapshotPlan:
    """`confirmed`: immutable files of the last completed or the restored checkpoint."""
    limits = thresholds or Thresholds()
    for file in files:
        if _WRITE_AHEAD_LOG.fullmatch(database_of(file.name)[1]) and file.size:
            raise ProtocolViolation(
                f"the checkpoint holds {file.size} bytes of write-ahead log {file.name}, but state is written without "
                "one: entries would be missing; please report this"
            )
    wanted = sorted((file for file in files if is_snapshot_file(file.name)), key=lambda file: file.name)
    reused = [confirmed[file.name] for file in wanted if _is_confirmed(file, confirmed)]
    fresh = [file for file in wanted if not _is_confirmed(file, confirmed)]
    small = tuple(file for file in fresh if file.size <= limits.pack_bytes)
    inlined_before = sum(ref.size for ref in reused if ref.inline is not None)
    tiny = inlined_before + sum(file.size for file in small) <= limits.inline_bytes
    return SnapshotPlan(
        reused=tuple(reused),
        alone=tuple(file for file in fresh if file.size > limits.pack_bytes),
        packed=() if tiny else small,
        inline=small if tiny else (),
    )


def _is_confirmed(file: LocalFile, confirmed: Mapping[str, FileRef]) -> bool:
    ref = confirmed.get(file.name)
    return is_immutable(file.name) and ref is not None and ref.size == file.size


@dataclass(frozen=True)
class RestorePart:
    """Key groups `first` to `last`, inclusive."""

    subtask: int
    keyed: KeyedSnapshot
    first: int
    last: int
    state_ids: dict[int, int]  # in the snapshot -> after the restore


@dataclass(frozen=True)
class RestorePlan:
    key_group_first: int
    key_group_last: int
    max_parallelism: int
    parts: tuple[RestorePart, ...]  # empty: start without state
    states: dict[str, int]
    described: Mapping[str, StateDescription] = field(default_factory=dict)

    def adopts(self, kind: str) -> KeyedSnapshot | None:
        """The only snapshot, if a backend of this kind can open that snapshot unchanged."""
        if len(self.parts) != 1:
            return None
        part = self.parts[0]
        same_range = (part.keyed.key_group_first, part.keyed.key_group_last) == (part.first, part.last)
        same_ids = all(old == new for old, new in part.state_ids.items())
        return part.keyed if same_range and same_ids and part.keyed.backend == kind else None


def plan_restore(
    operator: str, subtask: int, parallelism: int, max_parallelism: int, restored: Sequence[OperatorSnapshot]
) -> RestorePlan:
    """Raises `InvalidJob` for another max_parallelism, `Corrupt` for files that no snapshot contains,
    `ProtocolViolation` for a gap or an overlap.
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
    """Merged numbering, which keeps the first ids, and each numbering's changed ids (old to new)."""
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
    """The earlier `since_ms` counts, so that expired entries stay expired."""
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


MOST_BESIDE = 7


@dataclass(frozen=True)
class StoredDatabase:
    part: RestorePart
    number: int  # in the snapshot
    stored: tuple[KeyRange, ...]
    wanted: tuple[KeyRange, ...]  # for this subtask; not empty

    @property
    def names(self) -> list[str]:
        names = (ref.name for ref in self.part.keyed.files)
        return [name for name in names if segment_number(name) is None and database_of(name)[0] == self.number]

    @property
    def foreign(self) -> list[KeyRange]:
        first, end = range_start(self.part.first), range_end(self.part.last)
        cut = [(start, min(stop, first)) for start, stop in self.stored]
        cut += [(max(start, end), stop) for start, stop in self.stored]
        return [(start, stop) for start, stop in cut if start < stop]

    def fits(self, kind: str) -> bool:
        return self.part.keyed.backend == kind and all(old == new for old, new in self.part.state_ids.items())

    @property
    def groups(self) -> int:
        return _groups(self.wanted)

    @property
    def mostly_wanted(self) -> bool:
        return 2 * self.groups >= _groups(self.stored)

    @property
    def wanted_bytes(self) -> int:
        names = {name for name in self.names if is_immutable(name)}
        size = sum(ref.size for ref in self.part.keyed.files if ref.name in names)
        return size * self.groups // _groups(self.stored)


@dataclass(frozen=True)
class OpenedDatabases:
    opened: Mapping[int, StoredDatabase]  # by new number
    copied: tuple[StoredDatabase, ...] = ()

    @property
    def ranges(self) -> KeyRanges:
        ranges = KeyRanges()
        for number, database in self.opened.items():
            for start, end in database.wanted if number else ():
                ranges = ranges.given(start, end, number)
        return ranges


def stored_databases(part: RestorePart, ranges: KeyRanges) -> list[StoredDatabase]:
    all_of = range_start(part.keyed.key_group_first), range_end(part.keyed.key_group_last)
    some = range_start(part.first), range_end(part.last)
    each = [StoredDatabase(part, n, ranges.of(n, *all_of), ranges.of(n, *some)) for n in ranges.numbers()]
    return [database for database in each if database.wanted]


def opened_databases(
    plan: RestorePlan, kind: str, databases: Sequence[StoredDatabase], copied_bytes: int
) -> OpenedDatabases:
    if plan.adopts(kind) is not None:
        return OpenedDatabases({database.number: database for database in databases})
    fitting = [each for each in databases if each.fits(kind)]
    first = max((each for each in fitting if each.mostly_wanted), key=lambda each: each.groups, default=None)
    rest = sorted((each for each in fitting if each is not first), key=lambda each: -each.wanted_bytes)
    beside = [each for each in rest if each.wanted_bytes > copied_bytes][:MOST_BESIDE]
    opened = dict(enumerate(beside, 1)) if first is None else {0: first, **dict(enumerate(beside, 1))}
    return OpenedDatabases(opened, tuple(each for each in databases if each is not first and each not in beside))


def _groups(ranges: Sequence[KeyRange]) -> int:
    return sum(_group(end) - _group(start) + (len(end) > 2) for start, end in ranges)


def _group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")
