"""Which checkpoints are kept, and which stored objects nobody can need any more. Pure mark and sweep.

Who may delete: only the coordinator of the current generation, with a `Permit`. No reference counts are stored; marks
are taken from manifests that the log decided. Leaks are allowed, corruption is not: in doubt nothing is deleted.

Which checkpoints are kept is said by the log alone (`log/decided`): its records drop the oldest of what they list. Here
the same steps are taken after a record is appended, so what is deleted is never of a checkpoint that the log keeps.

Why a dropped checkpoint's files are not deleted at once: a slot builds snapshot n on the files of the newest checkpoint
that it *knows* to be complete. While a slot may not yet have heard of the one that pushed checkpoint d out, its next
snapshot may still refer to files of d. A slot that acknowledged a checkpoint triggered after that decision was told has
heard of it (its control connection is first in, first out, and every slot acknowledges through it). So files of d go
only when a checkpoint triggered after d was dropped has completed, and all others triggered until then are resolved.
As a second fence, a checkpoint that refers to anything already deleted is never decided (`condemned`).

What an undecided checkpoint uploaded is of no use to anybody once that checkpoint has ended: a slot builds on files of
decided checkpoints alone, and uploads anything else again. So it goes, also in the generation that lives:

- What its acks name goes at once (`abandoned`), with acks that come after its end. What a kept checkpoint, one that
  waits to be dropped, or an ack of an open checkpoint names as well, stays.
- What no ack ever named is found by the sweep: an upload happens after its checkpoint's trigger. So what is older than
  a manifest, or a file of a decided checkpoint, that was written before the first open checkpoint was triggered,
  belongs to none of them. Both times are the store's, and the minimum age lies between them. Should that not be
  enough, an open checkpoint loses a file; the file is condemned, so that checkpoint is refused. A coordinator that
  takes the generation over knows neither condemned files nor open checkpoints: it aborts those, and sweeps again when
  it has decided one of its own.
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.paths import Paths

MIN_AGE_MS = 10 * 60 * 1000  # younger objects are never swept: an upload may be under way
_CONDEMNED_BOUND = 200_000
_UNSORTED_BOUND = 1_000


@dataclass(frozen=True)
class Kept:
    """A decided checkpoint and the job's own files that it needs. `inline`: no object is stored under `manifest_key`,
    the manifest is inside the log's record."""

    checkpoint: int
    manifest_key: str
    files: frozenset[str]
    inline: bool = False


@dataclass(frozen=True)
class SweepPlan:
    """What to delete, in this order: manifests, oldest first, then the files that only they needed. `newest`: of the
    decided checkpoints that are dropped; 0: the plan drops none, or which ones is not known."""

    manifests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    newest: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        return self.manifests + self.files

    def and_then(self, other: "SweepPlan") -> "SweepPlan":
        """Both as one."""
        return SweepPlan(self.manifests + other.manifests, self.files + other.files, max(self.newest, other.newest))


@dataclass
class Unsorted:
    """The kept checkpoints are not known yet, or the log names an unreadable manifest: nothing is deleted. `decided`:
    decisions of this process until then, oldest first."""

    decided: list[Kept] = field(default_factory=list)

    def add(self, kept: Kept, retained: int) -> None:
        """Forgotten decisions are left to the sweep of a later generation."""
        self.decided.append(kept)
        del self.decided[: -max(_UNSORTED_BOUND, retained)]


class RetentionVerdict(enum.Enum):
    """What the sweep makes of a stored object. Only ORPHAN is ever deleted."""

    NEEDED = "a kept checkpoint needs it"
    NEWEST_GENERATION = "it is of the newest generation or a later one: a checkpoint under way may need it"
    YOUNG = "it is younger than the minimum age"
    NOT_OURS = "its name is none that a job gives to checkpoints or snapshot files"
    ORPHAN = "nobody can reach it"


@dataclass(frozen=True)
class UnderWay:
    """Of the generation that lives: what its open checkpoints may still need."""

    named: frozenset[str]  # manifests that are being written and decided, and what acks name
    behind: frozenset[str] = frozenset()  # what decisions before the first of them was triggered had stored anew


@dataclass
class _Dropped:
    kept: Kept
    horizon: int  # the highest checkpoint id triggered when it was dropped
    waits_for: frozenset[int] | None = None  # None: no checkpoint beyond the horizon has completed yet


@dataclass
class Retention:
    """`kept`: oldest first. `retained`: how many to keep."""

    retained: int
    kept: list[Kept] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dropped: list[_Dropped] = []
        self._condemned: dict[str, None] = {}

    def after_restore(self, restored: Kept | None, held: Collection[int]) -> "Retention":
        """Of the next generation, which restores `restored`: its slots build on files of that alone. What was dropped
        and is `held` waits for nobody but who holds it."""
        kept = kept_after_restore(tuple(reversed(self.kept)), restored, self.retained)
        following = Retention(self.retained, kept)
        following._dropped = [
            _Dropped(each.kept, each.horizon, frozenset()) for each in self._dropped if each.kept.checkpoint in held
        ]
        return following

    def completed(
        self, kept: Kept, open_ids: Collection[int], highest_triggered: int, held: Collection[int] = ()
    ) -> SweepPlan:
        """`kept` was decided while `open_ids` were still under way: what may go now. `held`: see `resolved`."""
        for dropped in self._dropped:
            if dropped.waits_for is None and kept.checkpoint > dropped.horizon:
                dropped.waits_for = frozenset(open_ids)
        self.kept.append(kept)
        while len(self.kept) > self.retained:
            self._dropped.append(_Dropped(self.kept.pop(0), highest_triggered))
        return self.resolved(open_ids, held)

    def resolved(self, open_ids: Collection[int], held: Collection[int] = ()) -> SweepPlan:
        """Only `open_ids` are under way now: what may go now. `held`: decided checkpoints that a global committer may
        still have to read."""
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
        """`files`: what acks name of a checkpoint that ended undecided. Those that nothing else needs may go."""
        in_reach = _files_of([*self.kept, *(dropped.kept for dropped in self._dropped)])
        gone = set(files) - in_reach - under_way.named - self._condemned.keys()
        plan = SweepPlan(files=tuple(sorted(gone)))
        self._condemn(plan.keys)
        return plan

    def condemned(self, files: Iterable[str]) -> tuple[str, ...]:
        """Those of `files` that this generation has already deleted."""
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
        """What a coordinator of generation `token` makes of each object. The only place where that is decided.
        `under_way`: of that generation; None, if this process does not lead it: everything may be."""
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
        """What older generations, and ended checkpoints of this one, left behind and nobody can reach: undecided
        uploads, orphaned manifests.

        Everything is classified before anything is deleted.
        """
        verdicts = self.classify(paths, objects, token, wall_ms, under_way, min_age_ms)
        plan = _in_order(paths, (found.key for found, verdict in verdicts if verdict is RetentionVerdict.ORPHAN))
        self._condemn(plan.keys)
        return plan

    def _condemn(self, keys: Iterable[str]) -> None:
        self._condemned.update(dict.fromkeys(keys))
        while len(self._condemned) > _CONDEMNED_BOUND:
            del self._condemned[next(iter(self._condemned))]


def _older_than(objects: Iterable[ObjectInfo], under_way: UnderWay | None) -> int:
    """The store's time before which no open checkpoint uploaded anything; 0 if nothing tells."""
    behind = frozenset() if under_way is None else under_way.behind
    return max((found.modified_ms for found in objects if found.key in behind), default=0)


def _may_be_under_way(found: ObjectInfo, under_way: UnderWay | None, older_ms: int) -> bool:
    return under_way is None or found.key in under_way.named or found.modified_ms > older_ms


def kept_after_restore(completes: Sequence[Kept], restored: Kept | None, retained: int) -> list[Kept]:
    """What a new generation keeps: the newest decisions (`completes`, newest first), the one it grows from last. The
    newest of all is always kept, as in the log's `kept_by_fence`."""
    others = [kept for kept in completes if restored is None or kept.manifest_key != restored.manifest_key]
    room = retained if restored is None else retained - 1
    kept = list(reversed(others[:room] if room > 0 else []))
    newest = max(others, key=lambda each: each.checkpoint, default=None)
    if newest is not None and newest not in kept and (restored is None or newest.checkpoint > restored.checkpoint):
        kept.insert(0, newest)
    return kept if restored is None else [*kept, restored]


def discarded(paths: Paths, objects: Iterable[ObjectInfo], token: int) -> SweepPlan:
    """All checkpoints, snapshot files and rows of write-ahead sinks up to generation `token`, whose user dropped them.
    A later run's stay: it may have begun before the deleting did."""
    keys = [found.key for found in objects]
    owned = [(key, _owner(paths, key)) for key in keys] + [(key, _owner_of_rows(paths, key)) for key in keys]
    return _in_order(paths, (key for key, owner in owned if owner is not None and owner <= token))


def _owner(paths: Paths, key: str) -> int | None:
    """The generation that wrote this manifest or snapshot file; None: it is neither."""
    checkpoint = paths.checkpoint_of(key)
    return checkpoint[1] if checkpoint is not None else paths.data_token(key)


def _owner_of_rows(paths: Paths, key: str) -> int | None:
    """The generation that wrote this object of a write-ahead sink; None: it is none, or its name does not tell. Only
    the sink sweeps them."""
    staged, note = paths.staged_rows_origin(key), paths.delivery_of(key) or paths.asked_of(key)
    return staged[0] if staged is not None else (note[1] or None) if note is not None else None


def _in_order(paths: Paths, keys: Iterable[str]) -> SweepPlan:
    """Manifests, oldest first, before files: what is left of an interrupted sweep never names what is gone."""
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
