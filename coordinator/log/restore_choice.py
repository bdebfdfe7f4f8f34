"""Choice of a generation's restore point, and checks of user consent and job. Pure.

Starting without state requires a log without decisions, or the user's request. A start older than the last decision
would show rows twice, and needs `allow_replay`.

Meaning of `restore=<savepoint>`:

| the job's log                                                    | result                                           |
|------------------------------------------------------------------|--------------------------------------------------|
| no completed checkpoint                                          | the savepoint becomes the first checkpoint       |
| the newest checkpoint is the copied one                          | the job continues without a copy                 |
| the newest checkpoint grew from this savepoint                   | the job continues from the newest checkpoint: a  |
|                                                                  | supervisor repeats the command of a program      |
| … and the user allows a replay, and newer checkpoints exist      | the savepoint becomes the newest checkpoint      |
| anything else                                                    | refused, unless the user allows a replay         |

Each import begins a lineage whose id carries a mark of the savepoint.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogEntry, LogView, complete_of
from barrier_runtime.coordinator.log.kinds import changed_column, changed_kind
from barrier_runtime.coordinator.log.manifest import Manifest, check_files, is_kept
from barrier_runtime.coordinator.log.records import Complete, Fence, Finish
from barrier_runtime.coordinator.log.savepoint import Savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.continued_state import COME_AND_GO, added_aggregates, continued, unfit_aggregates
from barrier_runtime.state.snapshots.snapshot import (
    DEFINITION,
    JOIN_KEYS,
    KEYS,
    ONE_VALUE,
    SHARED,
    OperatorSnapshot,
    without_own,
)
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

_SHOWN = 10


class Lineage(enum.Enum):
    INHERIT = "the restored checkpoint's"
    SAME = "what the generation before had"
    NEW = "a new one"


@dataclass(frozen=True)
class RestoreFrom:
    entry: LogEntry | None  # None: start empty
    lineage: Lineage
    settled: bool = False  # all transactions of the decision are visible

    @property
    def checkpoint(self) -> int:
        return 0 if self.entry is None else complete_of(self.entry).checkpoint


def continue_run(log: DecisionLog) -> RestoreFrom:
    return RestoreFrom(log.restore_point, Lineage.SAME, log.is_visible)


def start_run(spec: JobSpec, view: LogView) -> RestoreFrom:
    newest = view.completes[0] if view.completes else None
    if newest is None:
        if spec.restore not in ("latest", "none"):
            raise InvalidJob(f"job {spec.job} has no completed checkpoint, but restore={spec.restore}: use 'latest'")
        return RestoreFrom(None, Lineage.NEW)
    last = complete_of(newest).checkpoint
    settled = _is_settled(view)
    if spec.restore != "none":
        _check_program(spec, view)
        _check_mode(spec, view)
    if spec.restore == "latest":
        return RestoreFrom(newest, Lineage.INHERIT, settled)
    if spec.restore == "none":
        if not spec.allow_replay:
            raise InvalidJob(
                f"job {spec.job} has completed checkpoint {last}; starting without state would write its rows again: "
                "use restore='latest', another job name, or allow_replay if that is wanted"
            )
        return RestoreFrom(None, Lineage.NEW)
    wanted = int(spec.restore)
    if wanted == last:
        return RestoreFrom(newest, Lineage.INHERIT, settled)
    found = next((entry for entry in view.completes if complete_of(entry).checkpoint == wanted), None)
    if not is_kept(found.position, view.kept) if found is not None else wanted < last and view.kept is not None:
        raise InvalidJob(not_kept(spec.job, wanted, view))
    if found is None:
        ids = ", ".join(str(complete_of(entry).checkpoint) for entry in view.completes[:_SHOWN])
        raise InvalidJob(f"job {spec.job} has no completed checkpoint {wanted} (newest: {ids}): choose one of them")
    if not spec.allow_replay:
        raise InvalidJob(
            f"checkpoint {wanted} of job {spec.job} is older than the last completed one, {last}; rows committed since "
            "would be written again: use restore='latest', or allow_replay if that is wanted"
        )
    return RestoreFrom(found, Lineage.NEW)


def not_kept(job: str, checkpoint: int, view: LogView | None = None) -> str:
    return (
        f"checkpoint {checkpoint} of job {job} is not kept any more{shown_kept(view)}: restore the latest one or a "
        "savepoint, and keep more checkpoints with retained="
    )


def shown_kept(view: LogView | None) -> str:
    """Newest kept checkpoints in brackets; "" if `view` lacks some."""
    entries = () if view is None else view.kept_entries
    if view is None or not entries or len(entries) < len(view.kept or ()):
        return ""
    kept = sorted(complete_of(entry).checkpoint for entry in entries)
    return f" (kept: {', '.join(map(str, kept[-_SHOWN:]))})"


def _check_program(spec: JobSpec, view: LogView) -> None:
    fence = None if view.fence is None else view.fence.record
    if isinstance(fence, Fence) and spec.fingerprint in outdated_after(fence.spec, spec):
        raise InvalidJob(
            f"this program was replaced by another one while job {spec.job} ran, and would put the job back: start the "
            "newer one, or set allow_outdated to go on with this one"
        )


def _check_mode(spec: JobSpec, view: LogView) -> None:
    """Refuses to replay rows that an `at_most_once` run may have written since the last checkpoint."""
    fence = None if view.fence is None else view.fence.record
    skipped = isinstance(fence, Fence) and fence.spec.checkpoints.mode == "at_most_once"
    if skipped and spec.checkpoints.mode != "at_most_once" and not spec.allow_replay:
        raise InvalidJob(
            f'job {spec.job} ran with mode="at_most_once", which may have written rows since the last checkpoint, and '
            f"mode={spec.checkpoints.mode!r} would write them again: use the same mode, or allow_replay if that is "
            "wanted or the run was stopped with a checkpoint"
        )


def outdated_after(before: JobSpec, spec: JobSpec) -> tuple[str, ...]:
    if spec.allow_outdated:
        return tuple(each for each in before.outdated if each != spec.fingerprint)
    return before.outdated


def _is_settled(view: LogView) -> bool:
    if not view.completes:
        return False
    newest, head = view.completes[0], None if view.head is None else view.head.record
    shown = isinstance(head, Finish) and head.shows(complete_of(newest).checkpoint)
    return shown or newest.position == view.visible


def check_manifest(
    spec: JobSpec, record: Complete, manifest: Manifest, *, settled: bool = False
) -> tuple[OperatorSnapshot, ...]:
    if (manifest.job, manifest.checkpoint, manifest.token) != (spec.job, record.checkpoint, record.token):
        raise Corrupt(
            f"manifest {record.manifest} is of job {manifest.job} checkpoint {manifest.checkpoint} generation "
            f"{manifest.token}, the log says {spec.job}, {record.checkpoint}, {record.token}: restore a backup"
        )
    check_files(record.manifest, manifest, Paths(spec.job))
    return check_fits(spec, manifest, f"checkpoint {manifest.checkpoint} of job {spec.job}", settled=settled)


def check_fits(spec: JobSpec, manifest: Manifest, what: str, *, settled: bool = False) -> tuple[OperatorSnapshot, ...]:
    """Raises `InvalidJob`, the first of `unfit`, if the job does not fit. Arguments are those of `unfit`."""
    for each in unfit(spec, manifest, what, settled=settled):
        raise each.error
    return _restored(spec, manifest)


class Refusal(NamedTuple):
    """`operator` and `state` (of a function, or an aggregate) that a start refuses; "": the job, or the operator."""

    operator: str
    state: str
    error: InvalidJob


def unfit(spec: JobSpec, manifest: Manifest, what: str, *, settled: bool = False) -> Iterator[Refusal]:
    """Yields why a start would refuse the checkpoint.

    `what`: for messages. `settled`: all transactions of the checkpoint are visible.
    """
    if manifest.max_parallelism != spec.max_parallelism:
        yield _unfit(
            f"{what} was taken with max_parallelism "
            f"{manifest.max_parallelism}, the job now has {spec.max_parallelism}: set {manifest.max_parallelism}; it "
            "is fixed for a job's life"
        )
    if manifest.drained_by not in ("", spec.run_id) and not spec.allow_drained:
        yield _unfit(
            f"{what} was taken after its job was drained: windows and timers have fired before their time, and would "
            "fire again for rows that come now; begin with an earlier savepoint, or set allow_drained if that is wanted"
        )
    stored = {snapshot.operator for snapshot in manifest.operators if not snapshot.is_empty}
    present = {name for chain in spec.chains for name in chain.operators}
    stateful = {name for chain in spec.chains for name in (*chain.stateful, *chain.sinks)}
    missing = stored - present
    if missing and not spec.allow_non_restored:
        yield _unfit(
            f"{what} has state of operators that the job no longer has. "
            f"matched: {_names(stored & present)}; missing: {_names(missing)}; new: {_names(stateful - stored)}. "
            "Give the operators their old names, or set allow_non_restored to drop the missing ones' state (what was "
            "decided of a sink is committed first)"
        )
    same_kind = []
    for snapshot in _restored(spec, manifest):
        another = changed_kind(spec.chains, snapshot, settled=settled)
        if another is not None:
            yield _unfit(another.refusal(what, snapshot.operator), snapshot.operator)
        else:
            same_kind.append(snapshot)
    for snapshot in same_kind:
        changed = changed_definition(spec, snapshot)
        if changed is not None:
            before, now = changed
            yield _unfit(
                f"{what} has state of operator {snapshot.operator!r} as {before}, "
                f"but the job now has it as {now}, which would make wrong results of that state: define it as {before} "
                "again, or give the operator a new name to start without state, and set allow_non_restored to drop "
                "what the old name had",
                snapshot.operator,
            )
    for snapshot in same_kind:
        yield from _unfit_states(spec, what, snapshot)


def _unfit(text: str, operator: str = "", state: str = "") -> Refusal:
    return Refusal(operator, state, InvalidJob(text))


def _restored(spec: JobSpec, manifest: Manifest) -> tuple[OperatorSnapshot, ...]:
    present = {name for chain in spec.chains for name in chain.operators}
    return tuple(snapshot for snapshot in manifest.operators if snapshot.operator in present)


def _unfit_states(spec: JobSpec, what: str, snapshot: OperatorSnapshot) -> Iterator[Refusal]:
    operator = snapshot.operator
    where = f"{what}, operator {operator!r}"
    changed = changed_key(spec, snapshot)
    if changed is not None:
        before, now = changed
        yield _unfit(
            f"{where}: its state is kept by the key ({before}), but its rows have ({now}) now: make the columns "
            "what they were, or give the operator a new name to start without state, and set allow_non_restored "
            "to drop what the old name had",
            operator,
        )
    column = changed_column(spec.chains, snapshot)
    if column is not None:
        name, before, now = column
        yield _unfit(
            f"{where}: its state was made of column {name!r} as {before}, but its rows have it as {now} now: keep "
            "the type, as with CAST in a select() before, or give the operator a new name to start without state, "
            "and set allow_non_restored to drop what the old name had",
            operator,
        )
    if snapshot.keyed is None:
        return
    described = snapshot.keyed.described
    declared = next((chain.states[operator] for chain in spec.chains if operator in chain.states), {})
    for name, error in unfit_aggregates(declared, described, spec.allow_non_restored, where):
        yield Refusal(operator, name, error)
    for name in sorted(declared.keys() & {*snapshot.keyed.states, *described}):
        if declared[name].kind in COME_AND_GO:
            continue
        try:
            continued(declared[name], described.get(name, ONE_VALUE), f"{where}, state {name!r}")
        except InvalidJob as error:
            yield Refusal(operator, name, error)


def changed_definition(spec: JobSpec, snapshot: OperatorSnapshot) -> tuple[str, str] | None:
    operator, stored = snapshot.operator, snapshot.values.get(DEFINITION)
    now = next(
        (chain.definitions[operator] for chain in spec.chains if operator in chain.definitions), "something else"
    )
    return None if stored is None or stored == now.encode() else (stored.decode(errors="replace"), now)


def changed_key(spec: JobSpec, snapshot: OperatorSnapshot) -> tuple[str, str] | None:
    operator, values = snapshot.operator, snapshot.values
    before = (values.get(KEYS) or values.get(JOIN_KEYS, b"")).decode(errors="replace")
    now = next((chain.keys[operator] for chain in spec.chains if operator in chain.keys), "")
    return (before, now) if before and now and before != now else None


def begin_at_zero(spec: JobSpec, manifest: Manifest) -> str:
    """Describes aggregates that the checkpoint lacks; "" if none."""
    states = {name: declared for chain in spec.chains for name, declared in chain.states.items()}
    found: dict[str, list[str]] = {}
    for snapshot in manifest.operators:
        described = {} if snapshot.keyed is None else snapshot.keyed.described
        added = added_aggregates(states.get(snapshot.operator, {}), described)
        if added:
            found[snapshot.operator] = added
    shown = "; ".join(f"{', '.join(added)} of {operator!r}" for operator, added in sorted(found.items()))
    return f"new since checkpoint {manifest.checkpoint}, without the rows before it: {shown}" if shown else ""


def snapshots_for_slot(
    snapshots: tuple[OperatorSnapshot, ...], slot: int, parallelism: int
) -> tuple[OperatorSnapshot, ...]:
    """With unchanged parallelism a slot restores the slot's own snapshots, otherwise all.

    Small state (positions of sources, committables) always includes all subtasks, because a changed list of splits
    moves splits. Of other subtasks with keyed state the slot gets the shared values (`SHARED`), never those of a single
    subtask (`OWN`).
    """
    wanted: list[OperatorSnapshot] = []
    for each in snapshots:
        snapshot = each if each.subtask % parallelism == slot else without_own(each)
        if snapshot.parallelism != parallelism or snapshot.subtask == slot:
            wanted.append(snapshot)
        elif snapshot.keyed is None and (snapshot.values or snapshot.objects):
            wanted.append(msgspec.structs.replace(snapshot, in_flight=()))
        elif any(name.startswith(SHARED) for name in (*snapshot.values, *snapshot.objects)):
            wanted.append(_shared(snapshot))
    return tuple(wanted)


def _shared(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    return msgspec.structs.replace(
        snapshot,
        values={name: value for name, value in snapshot.values.items() if name.startswith(SHARED)},
        objects={name: ref for name, ref in snapshot.objects.items() if name.startswith(SHARED)},
        keyed=None,
        in_flight=(),
    )


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


_IMPORT = "savepoint-"
_MARK = 16


@dataclass(frozen=True)
class Import:
    checkpoint: int


@dataclass(frozen=True)
class GoOn:
    why: str


def import_run_id(savepoint_id: str) -> str:
    return f"{_IMPORT}{savepoint_id}"


def import_leader(savepoint_id: str, random: str) -> str:
    """Id of the importing process, which names the new lineage. `random`: unique hex."""
    return _mark_of(savepoint_id) + random[:_MARK]


def grew_from(view: LogView, savepoint_id: str) -> bool:
    """Returns whether the job's newest checkpoint grew from an import of the savepoint.

    `view`: for logs of older releases, read back to the run `import_run_id`.
    """
    newest = _newest(view)
    if newest is None:
        return False
    return newest.lineage.startswith(_mark_of(savepoint_id)) or any(
        fence.spec.run_id == import_run_id(savepoint_id) and fence.lineage == newest.lineage for fence in _fences(view)
    )


def grew_from_any(view: LogView) -> bool:
    newest = _newest(view)
    return newest is not None and any(
        fence.spec.run_id.startswith(_IMPORT) and fence.lineage == newest.lineage for fence in _fences(view)
    )


def savepoint_choice(spec: JobSpec, savepoint: Savepoint, view: LogView) -> Import | GoOn:
    """Chooses by the module's table. `view`: as in `grew_from`."""
    taken = savepoint.taken
    newest = _newest(view)
    as_next = Import(max(taken.checkpoint, DecisionLog(spec.job, view).checkpoint_floor + 1))
    if newest is None:
        return as_next
    if (newest.checkpoint, newest.token, newest.lineage) == (taken.checkpoint, taken.token, taken.lineage):
        return GoOn(f"the savepoint is a copy of checkpoint {newest.checkpoint}, the newest of job {spec.job}")
    begun = grew_from(view, savepoint.id)
    if begun and not (spec.allow_replay and _moved_on(newest)):
        return GoOn(f"job {spec.job} began with this savepoint and has reached checkpoint {newest.checkpoint}")
    if not spec.allow_replay:
        once = any(fence.spec.run_id == import_run_id(savepoint.id) for fence in _fences(view))
        since = "began with this savepoint, was put on another state since, and " if once else ""
        raise InvalidJob(
            f"job {spec.job} {since}has completed checkpoint {newest.checkpoint}; to begin with the savepoint of "
            f"checkpoint {taken.checkpoint} of job {taken.job} would write rows again: use restore='latest', another "
            "job name, or allow_replay if that is wanted"
        )
    return as_next


def _newest(view: LogView) -> Complete | None:
    return complete_of(view.completes[0]) if view.completes else None


def _moved_on(newest: Complete) -> bool:
    """Returns whether a process after the import wrote the newest checkpoint."""
    return newest.put_id.rpartition("-")[0] != newest.lineage.rpartition("-")[0]


def _fences(view: LogView) -> Iterator[Fence]:
    entries = (entry for entry in (view.fence, *view.earlier_runs) if entry is not None)
    return (entry.record for entry in entries if isinstance(entry.record, Fence))


def _mark_of(savepoint_id: str) -> str:
    return sha256_hex(savepoint_id.encode())[:_MARK]
