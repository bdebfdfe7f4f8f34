"""Judgement of a job's stored objects for `fsck`. Pure.

`LogWalk` judges each log record by the writer's laws (`log/laws`) and the hash chain, and follows which checkpoints
coordinators kept. A missing checkpoint of `must_exist` is damage; no checkpoint `in_reach` is left over. For earlier
releases' records kept checkpoints are inferred.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from barrier_runtime.coordinator.log.laws import Before, broken_laws, next_prior_complete
from barrier_runtime.coordinator.log.manifest import Manifest, check_files, decode_manifest, inline_data
from barrier_runtime.coordinator.log.records import (
    FIRST_POSITION,
    NO_RECORD,
    Complete,
    Fence,
    Finish,
    Lead,
    Record,
    base_of,
    decode_record,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

BACKUP = "restore the object from a backup or an older version of the bucket"
OTHER_CHECKPOINT = f"{BACKUP}, or start from another retained checkpoint (restore=<id>, allow_replay)"
CHANGED = f"the log was changed by something else than a coordinator: {BACKUP}"
_RECENT = 1_001  # more than any job may retain
_UNREADABLE = -1

State = Literal["orphan", "deleted", "kept", "unknown"]


class Damage(msgspec.Struct, frozen=True):
    object: str
    expected: str
    found: str
    remedy: str


class UnreferencedObject(msgspec.Struct, frozen=True):
    """An object that no retained checkpoint needs.

    `orphan`: the job's sweep would delete the object; `kept`: not now; `unknown`: of another origin, never deleted.
    """

    key: str
    size: int
    state: State
    reason: str


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    records: int
    generation: int
    checkpoint: int  # newest; 0: none
    verified: tuple[int, ...] = ()
    files: int = 0  # hashed ranges of objects, and files inside manifests
    bytes: int = 0
    damage: tuple[Damage, ...] = ()
    unreferenced: tuple[UnreferencedObject, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: str = ""  # a newer release wrote the job: nothing was checked


class FsckReport(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    jobs: tuple[JobReport, ...]

    @property
    def exit_code(self) -> int:
        """Exit code: 0 clean, 1 orphans only, 2 damage or a job that this release cannot read."""
        if any(job.damage or job.unreadable for job in self.jobs):
            return 2
        return 1 if any(each.state == "orphan" for job in self.jobs for each in job.unreferenced) else 0


@dataclass(frozen=True)
class Decided:
    position: int
    record: Complete

    @property
    def checkpoint(self) -> int:
        return self.record.checkpoint

    @property
    def key(self) -> str:
        return self.record.manifest


class LogWalk:
    """Walk through the log: `feed` every record from the base on.

    Records below the base may be missing, except the FENCE of the generation and kept decisions.
    """

    def __init__(self, paths: Paths, again: Callable[[int], bytes | None]) -> None:
        self._paths = paths
        self._again = again
        self.head = FIRST_POSITION - 1
        self.fence: Fence | None = None
        self.finish: Finish | None = None
        self.newest: Decided | None = None  # complete, and not discarded
        self.damage: list[Damage] = []
        self._previous_sha256: str | None = ""  # None: that record was missing or unreadable
        self._expected_token = 0
        self._expected_complete = NO_RECORD
        # per position: decided checkpoint, 0: none, or _UNREADABLE
        self._checkpoint_at = array("q")
        self._token_at = array("q")
        self._floor = 0
        self._chain: deque[Decided] = deque(maxlen=_RECENT)
        self._kept: list[Decided] = []  # in the order in which the coordinator drops them
        self._must: list[Decided] = []
        self._restore_point: Decided | None = None
        self._lists = False  # the newest FENCE or COMPLETE lists kept decisions
        self._listed: tuple[int, ...] = ()
        self._base = self._first = FIRST_POSITION  # of the newest record, and of the walk

    @property
    def retained(self) -> int:
        return 1 if self.fence is None else self.fence.spec.checkpoints.retained

    @property
    def token(self) -> int:
        return 0 if self.fence is None else self.fence.token

    @property
    def must_exist(self) -> tuple[Decided, ...]:
        """Complete checkpoints that no process may have dropped, oldest first."""
        return tuple(sorted(self._must, key=lambda decided: decided.position))

    @property
    def in_reach(self) -> tuple[Decided, ...]:
        """Checkpoints that a coordinator may keep or restore, with `must_exist`, oldest first."""
        inferred = () if self._lists else self._newest_of_chain()
        all_of_them = {each.position: each for each in (*self._must, *self._kept, *inferred)}
        return tuple(all_of_them[position] for position in sorted(all_of_them))

    def dropped(self, most: int) -> tuple[Decided, ...]:
        reach = {each.position for each in self.in_reach}
        return tuple(each for each in self._chain if each.position not in reach)[-most:]

    def decided(self, wanted: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """Returns the (checkpoint, token) in `wanted` that the log ever decided."""
        asked = frozenset(wanted)
        return frozenset(pair for pair in zip(self._checkpoint_at, self._token_at, strict=True) if pair in asked)

    def begin_at(self, base: int) -> None:
        self._base = self._first = base
        self.head, self._previous_sha256 = base - 1, None

    def _know_fence(self, position: int) -> None:
        data, key = self._again(position), self._paths.log_record(position)
        try:
            record = None if data is None else decode_record(key, data)
        except Corrupt as error:
            self._harm(key, "a FENCE", str(error), BACKUP)
            return
        if isinstance(record, Fence) and record.token == position:
            self.fence, self._floor = record, record.checkpoint_floor
        else:
            self._harm(key, "the FENCE of a generation", "nothing" if record is None else type(record).__name__, BACKUP)

    def lost(self) -> Iterator[Damage]:
        for position in self._listed:
            if position < self._first and self._lookup(position) is None:
                yield Damage(self._paths.log_record(position), "a kept decision", "nothing", BACKUP)

    def feed(self, data: bytes | None) -> None:
        """`data`: None if the position is empty, although later positions are not."""
        self.head = position = self.head + 1
        key = self._paths.log_record(position)
        self._checkpoint_at.append(_UNREADABLE)
        self._token_at.append(0)
        if data is None:
            self._previous_sha256 = None
            self._harm(key, "a log record: positions are contiguous", "nothing", BACKUP)
            return
        previous, self._previous_sha256 = self._previous_sha256, sha256_hex(data)
        try:
            record = decode_record(key, data)
        except Corrupt as error:
            self._harm(key, "a log record that this release can read", str(error), BACKUP)
            self._previous_sha256 = None
            return
        if previous is not None and record.parent_sha256 != previous:
            before = self._paths.log_record(position - 1) if position > FIRST_POSITION else key
            self._harm(
                before, f"sha256 {record.parent_sha256 or '(none)'}, says its successor", f"sha256 {previous}", BACKUP
            )
        self._checkpoint_at[-1] = 0
        if self.fence is None and record.token < self._first:
            self._know_fence(record.token)
        for law in broken_laws(self._before(position, previous is not None), record):
            self._harm(key, law.expected, law.found, CHANGED)
        self._expected_token, self._base = record.token, base_of(record)
        self._expected_complete = next_prior_complete(position, record)
        self._follow(position, record)

    def _before(self, position: int, seen: bool) -> Before:
        """After an unreadable record (not `seen`), the next record is accepted once."""
        kept = frozenset(self._listed) if self._lists and seen else None
        return Before(
            job=self._paths.job,
            position=position,
            token=self._expected_token if seen else None,
            prior_complete=self._expected_complete if seen else None,
            fence=self.fence,
            fence_known=seen and (position == FIRST_POSITION or self.token == self._expected_token),
            finish=self.finish if seen else None,
            checkpoint_floor=self._floor,
            kept=kept,
            base=self._base if seen else None,
            checkpoint_at=self._decides,
        )

    def _decides(self, position: int) -> int | None:
        if position < self._first:
            return None
        found = self._checkpoint_at[position - self._first]
        return None if found == _UNREADABLE else found

    def _follow(self, position: int, record: Record) -> None:
        if isinstance(record, Fence):
            self.fence, self.finish = record, None
            self._floor = max(self._floor, record.checkpoint_floor)
            self._fenced(record)
        elif isinstance(record, Lead) and not self._lists:
            newest = self._newest_of_chain()
            self._kept = newest
            self._must = _among(self._must, newest, self._restore_point)
        elif isinstance(record, Complete):
            self._completed(Decided(position, record))
        elif isinstance(record, Finish):
            self.finish = record
            if record.discarded:
                self.newest = self._restore_point = None
                self._kept, self._must, self._listed = [], [], ()
                self._chain.clear()
                self._lists = False
                self._floor = 0 if self.fence is None else self.fence.checkpoint_floor

    def _fenced(self, record: Fence) -> None:
        restored = self._restore_point = self._lookup(record.restored_position)
        if record.lists_kept:
            self._keep(record.kept)
            return
        self._lists = False
        others = [each for each in reversed(self._chain) if restored is None or each.position != restored.position]
        others = others[: self.retained if restored is None else self.retained - 1]
        self._kept = list(reversed(others))
        self._must = _among(self._must, others)
        if restored is not None:
            self._kept.append(restored)
            self._must.append(restored)

    def _completed(self, decided: Decided) -> None:
        index = decided.position - self._first
        self._checkpoint_at[index], self._token_at[index] = decided.checkpoint, decided.record.token
        self._floor = max(self._floor, decided.checkpoint)
        self._chain.append(decided)
        if decided.record.lists_kept:
            self.newest = self._restore_point = decided
            self._keep((*decided.record.kept, decided.position))
            return
        self._lists = False
        self._kept = [*self._kept, decided][-self.retained :]
        self._must = [*_among(_among(self._must, self._newest_of_chain()), self._kept), decided]
        self.newest = self._restore_point = decided

    def _keep(self, positions: tuple[int, ...]) -> None:
        """An earlier release may have dropped the manifest of a decision outside `must_exist`."""
        had_to_be = {each.position for each in self._must}
        self._listed = positions
        self._kept = [each for each in map(self._lookup, positions) if each is not None]
        restored = None if self._restore_point is None else self._restore_point.position
        self._must = [
            each
            for each in self._kept
            if each.record.lists_kept or each.position in had_to_be or each.position == restored
        ]
        self._lists = True

    def _newest_of_chain(self) -> list[Decided]:
        count = min(self.retained, len(self._chain))
        return [self._chain[index - count] for index in range(count)]

    def _lookup(self, position: int) -> Decided | None:
        """Returns None for absent or damaged records, reported elsewhere."""
        if position == NO_RECORD or not FIRST_POSITION <= position <= self.head:
            return None
        known = next((each for each in (*self._must, *self._chain) if each.position == position), None)
        if known is not None:
            return known
        data = self._again(position)
        if data is None:
            return None
        try:
            record = decode_record(self._paths.log_record(position), data)
        except Corrupt:
            return None
        return Decided(position, record) if isinstance(record, Complete) else None

    def _harm(self, key: str, expected: str, found: str, remedy: str) -> None:
        self.damage.append(Damage(key, expected, found, remedy))


def _among(those: Iterable[Decided], others: Iterable[Decided], also: Decided | None = None) -> list[Decided]:
    positions = {each.position for each in others} | ({also.position} if also is not None else set())
    return [each for each in those if each.position in positions]


@dataclass(frozen=True)
class FileRange:
    """Part of an object that a checkpoint needs. Equal ranges are read once."""

    key: str
    offset: int
    size: int
    sha256: str

    def damage(self, size: int, sha256: str) -> Damage | None:
        if (size, sha256) == (self.size, self.sha256):
            return None
        place = f" from byte {self.offset}" if self.offset else ""
        return Damage(
            self.key,
            f"{self.size} bytes{place} with sha256 {self.sha256}",
            f"{size} bytes with sha256 {sha256}",
            OTHER_CHECKPOINT,
        )

    def missing(self) -> Damage:
        return Damage(self.key, f"{self.size} bytes with sha256 {self.sha256}", "nothing", OTHER_CHECKPOINT)


def read_manifest(paths: Paths, decided: Decided, data: bytes | None) -> Manifest | Damage:
    record, key = decided.record, decided.key
    if data is None:
        return Damage(key, f"the manifest of checkpoint {record.checkpoint}", "nothing", OTHER_CHECKPOINT)
    found = sha256_hex(data)
    if found != record.sha256:
        return Damage(key, f"sha256 {record.sha256}", f"sha256 {found}", OTHER_CHECKPOINT)
    try:
        manifest = decode_manifest(key, data)
        check_files(key, manifest, paths)
    except Corrupt as error:
        return Damage(key, "a manifest that this release can restore", str(error), OTHER_CHECKPOINT)
    expected = (paths.job, record.checkpoint, record.token, record.lineage)
    says = (manifest.job, manifest.checkpoint, manifest.token, manifest.lineage)
    if says != expected:
        return Damage(key, f"job, checkpoint, generation, lineage {expected}", f"{says}", OTHER_CHECKPOINT)
    if manifest.parent_position >= decided.position:
        return Damage(key, f"parent_position below {decided.position}", str(manifest.parent_position), OTHER_CHECKPOINT)
    if manifest.parent_position == decided.position - 1 and manifest.parent_sha256 != record.parent_sha256:
        return Damage(
            key, f"parent_sha256 {record.parent_sha256}", f"parent_sha256 {manifest.parent_sha256}", OTHER_CHECKPOINT
        )
    return manifest


def inline_manifest(decided: Decided) -> Manifest | None:
    try:
        data = inline_data(decided.record)
        return None if data is None else decode_manifest(decided.key, data)
    except (Corrupt, InvalidJob):
        return None


def file_refs(manifest: Manifest) -> Iterator[FileRef]:
    for snapshot in manifest.operators:
        yield from snapshot.files


def inline_damage(key: str, ref: FileRef) -> Damage | None:
    data = ref.inline or b""
    found = (len(data), sha256_hex(data))
    if found == (ref.size, ref.sha256):
        return None
    return Damage(
        f"{key} (file {ref.name} inside)",
        f"{ref.size} bytes with sha256 {ref.sha256}",
        f"{found[0]} bytes with sha256 {found[1]}",
        OTHER_CHECKPOINT,
    )
