"""Retained checkpoints, and useless stored objects. Pure mark and sweep.

Only the coordinator of the current generation deletes, with a `Permit`; in doubt nothing is deleted. A checkpoint that
names a deleted object is never decided (`condemned`). Design: docs/design/leadership.md.

**Files of dropped checkpoints** wait while a slot may build on them. An ack of a checkpoint triggered after a decision
proves that the slot knows the decision (connections keep order). Files of checkpoint d are deleted only when a
checkpoint triggered after d was dropped has completed, and all others triggered until then have ended.

**Files of undecided checkpoints** are useless after the checkpoint's end. Files named in acks are deleted at once
(`abandoned`), unless needed elsewhere; the sweep deletes the others. Uploads follow the trigger. So if a decided
checkpoint wrote an object before the first open trigger, objects that are older by more than the minimum age (both by
the store's clock) belong to no open checkpoint. A new coordinator aborts open checkpoints, and sweeps only after a
decision.
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.paths import Paths

MIN_AGE_MS = 10 * 60 * 1000  # younger objects may belong to an upload in progress
_CONDEMNED_BOUND = 200_000
_UNSORTED_BOUND = 1_000


@dataclass(frozen=True)
class Kept:
    """A decided checkpoint and the needed files of the job. `inline`: `manifest_key` names no object."""

    checkpoint: int
    manifest_key: str
    files: frozenset[str]
    inline: bool = False


@dataclass(frozen=True)
class SweepPlan:
    """Deleted in this order, manifests oldest first. `newest`: the newest dropped decision; 0: none, or unknown."""

    manifests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    newest: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        return self.manifests + self.files

    def and_then(self, other: "SweepPlan") -> "SweepPlan":
        return SweepPlan(self.manifests + other.manifests, self.files + other.files, max(self.newest, other.newest))


@dataclass
class Unsorted:
    """Retention while kept checkpoints are unknown: nothing is deleted.

    `decided`: decisions of this process, oldest first.
    """

    decided: list[Kept] = field(default_factory=list)

    def add(self, kept: Kept, retained: int) -> None:
        """A later generation sweeps objects of forgotten decisions."""
        self.decided.append(kept)
        del self.decided[: -max(_UNSORTED_BOUND, retained)]


class RetentionVerdict(enum.Enum):
    NEEDED = "a kept checkpoint needs it"
    NEWEST_GENERATION = "it is of the newest generation or a later one: a checkpoint under way may need it"
    YOUNG = "it is younger than the minimum age"
    NOT_OURS = "its name is none that a job gives to checkpoints or snapshot files"
    ORPHAN = "nobody can reach it"


@dataclass(frozen=True)
class UnderWay:
    named: frozenset[str]  # manifests being written or decided, and files in acks
    behind: frozenset[str] = frozenset()  # new objects of decisions before the first open trigger


@dataclass
class _Dropped:
    kept: Kept
    horizon: int  # highest triggered checkpoint when dropped
    waits_for: frozenset[int] | None = None  # None: no checkpoint beyond the horizon has completed


@dataclass
class Retention:
    """`kept`: oldest first. `retained`: number to keep."""

    retained: int
    kept: list[Kept] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dropped: list[_Dropped] = []
        self._condemned: dict[str, None] = {}

    def after_restore(self, restored: Kept | None, held: Collection[int]) -> "Retention":
        """Retention of the next generation, which builds only on files of `restored`.

        A dropped checkpoint in `held` waits only for the holder.
        """
        kept = kept_after_restore(tuple(reversed(self.kept)), restored, self.retained)
        following = Retention(self.retained, kept)
        following.hold((each.kept for each in self._dropped), held)
        return following

    def hold(self, decided: Iterable[Kept], held: Collection[int]) -> None:
        """Keeps those of `decided`, from earlier generations, that are in `held`."""
        kept = {each.manifest_key for each in self.kept}
        found = (each for each in decided if each.checkpoint in held and each.manifest_key not in kept)
        self._dropped += [_Dropped(each, each.checkpoint, frozenset()) for each in found]

    def completed(
        self, kept: Kept, open_ids: Collection[int], highest_triggered: int, held: Collection[int] = ()
    ) -> SweepPlan:
        """Records a decision while `open_ids` are pending; returns objects to delete."""
        for dropped in self._dropped:
            if dropped.waits_for is None and kept.checkpoint > dropped.horizon:
                dropped.waits_for = frozenset(open_ids)
        self.kept.append(kept)
        while len(self.kept) > self.retained:
            self._dropped.append(_Dropped(self.kept.pop(0), highest_triggered))
        return self.resolved(open_ids, held)

    def resolved(self, open_ids: Collection[int], held: Collection[int] = ()) -> SweepPlan:
        """Returns objects to delete now that only `open_ids` are pending.

        `held`: decided checkpoints that a global committer may still read.
        """
        still_open = frozenset(open_ids)
        for dropped in self._dropped:
            if dropped.waits_for is not None:
                dropped.waits_for &= still_open
        free = [
            each.kept for each in self._dropped if each.waits_for == frozenset() and each.kept.checkpoint not in held
        ]
        if not free:
            return SweepPlan()
        self._dropped = [each for each in self._dropped if each.kept not in free]
        needed = _files_of([*self.kept, *(dropped.kept for dropped in self._dropped)])
        plan = SweepPlan(
            manifests=tuple(
                kept.manifest_key for kept in sorted(free, key=lambda kept: kept.checkpoint) if not kept.inline
            ),
            files=tuple(sorted(_files_of(free) - needed)),
            newest=max(kept.checkpoint for kept in free),
        )
        self._condemn(plan.keys)
        return plan

    def abandoned(self, files: Iterable[str], under_way: UnderWay) -> SweepPlan:
        in_reach = _files_of([*self.kept, *(dropped.kept for dropped in self._dropped)])
        gone = set(files) - in_reach - under_way.named - self._condemned.keys()
        plan = SweepPlan(files=tuple(sorted(gone)))
        self._condemn(plan.keys)
        return plan

    def condemned(self, files: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(key for key in files if key in self._condemned))

    def classify(
        self,
        paths: Paths,
        objects: Iterable[ObjectInfo],
        token: int,
        wall_ms: int,
        under_way: UnderWay | None = None,
        min_age_ms: int = MIN_AGE_MS,
    ) -> Iterator[tuple[ObjectInfo, RetentionVerdict]]:
        """`under_way`: needs of generation `token`; None: unknown, another process leads."""
        in_reach = [*self.kept, *(dropped.kept for dropped in self._dropped)]
        needed = _files_of(in_reach) | {kept.manifest_key for kept in in_reach}
        objects = list(objects)
        older_ms = _older_than(objects, under_way) - min_age_ms
        for found in objects:
            owner = _owner(paths, found.key)
            if owner is None:
                yield found, RetentionVerdict.NOT_OURS
            elif found.key in needed:
                yield found, RetentionVerdict.NEEDED
            elif owner > token or (owner == token and _may_be_under_way(found, under_way, older_ms)):
                yield found, RetentionVerdict.NEWEST_GENERATION
            elif wall_ms - found.modified_ms < min_age_ms:
                yield found, RetentionVerdict.YOUNG
            else:
                yield found, RetentionVerdict.ORPHAN

    def sweep(
        self,
        paths: Paths,
        objects: Sequence[ObjectInfo],
        token: int,
        wall_ms: int,
        under_way: UnderWay | None = None,
        min_age_ms: int = MIN_AGE_MS,
    ) -> SweepPlan:
        verdicts = self.classify(paths, objects, token, wall_ms, under_way, min_age_ms)
        plan = _in_order(paths, (found.key for found, verdict in verdicts if verdict is RetentionVerdict.ORPHAN))
        self._condemn(plan.keys)
        return plan

    def _condemn(self, keys: Iterable[str]) -> None:
        self._condemned.update(dict.fromkeys(keys))
        while len(self._condemned) > _CONDEMNED_BOUND:
            del self._condemned[next(iter(self._condemned))]


def _older_than(objects: Iterable[ObjectInfo], under_way: UnderWay | None) -> int:
    """Store's time before which no open checkpoint uploaded; 0: unknown."""
    behind = frozenset() if under_way is None else under_way.behind
    return max((found.modified_ms for found in objects if found.key in behind), default=0)


def _may_be_under_way(found: ObjectInfo, under_way: UnderWay | None, older_ms: int) -> bool:
    return under_way is None or found.key in under_way.named or found.modified_ms > older_ms


def kept_after_restore(completes: Sequence[Kept], restored: Kept | None, retained: int) -> list[Kept]:
    """`completes`: newest first.

    The newest is always kept, as in the log's `kept_by_fence`.
    """
    others = [kept for kept in completes if restored is None or kept.manifest_key != restored.manifest_key]
    room = retained if restored is None else retained - 1
    kept = list(reversed(others[:room] if room > 0 else []))
    newest = max(others, key=lambda each: each.checkpoint, default=None)
    if newest is not None and newest not in kept and (restored is None or newest.checkpoint > restored.checkpoint):
        kept.insert(0, newest)
    return kept if restored is None else [*kept, restored]


def discarded(paths: Paths, objects: Iterable[ObjectInfo], token: int) -> SweepPlan:
    """Deletes a discarded job's objects up to generation `token`.

    A later run may have begun before the deletion.
    """
    keys = [found.key for found in objects]
    owned = [(key, _owner(paths, key)) for key in keys] + [(key, _owner_of_rows(paths, key)) for key in keys]
    return _in_order(paths, (key for key, owner in owned if owner is not None and owner <= token))


def _owner(paths: Paths, key: str) -> int | None:
    checkpoint = paths.checkpoint_of(key)
    return checkpoint[1] if checkpoint is not None else paths.data_token(key)


def _owner_of_rows(paths: Paths, key: str) -> int | None:
    """Generation of a write-ahead sink's object; None: another object, or unknown."""
    staged, note = paths.staged_rows_origin(key), paths.delivery_of(key) or paths.asked_of(key)
    return staged[0] if staged is not None else (note[1] or None) if note is not None else None


def _in_order(paths: Paths, keys: Iterable[str]) -> SweepPlan:
    """Manifests first: after an interrupted sweep no manifest may lack files."""
    manifests: list[tuple[int, int, str]] = []
    files: list[str] = []
    for key in keys:
        checkpoint = paths.checkpoint_of(key)
        if checkpoint is None:
            files.append(key)
        else:
            manifests.append((*checkpoint, key))
    return SweepPlan(tuple(key for _, _, key in sorted(manifests)), tuple(sorted(files)))


def _files_of(kept: Iterable[Kept]) -> frozenset[str]:
    return frozenset().union(*(item.files for item in kept))
