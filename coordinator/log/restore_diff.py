"""Effect of a restore on a job's state, for people."""

from collections.abc import Iterable

from barrier_runtime.coordinator.log.kinds import changed_column, changed_kind
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.restore_choice import changed_definition, changed_key, unfit
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.snapshots.continued_state import COME_AND_GO, aggregates_of
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, StateDescription
from barrier_runtime.state.texts import counted


class RestoreDiff:
    """`lines`: per operator and state. `refused`: why `run` would not start."""

    def __init__(self, spec: JobSpec, manifest: Manifest, what: str, *, settled: bool = False) -> None:
        """`settled`: all transactions of the checkpoint are visible."""
        found = tuple(unfit(spec, manifest, what, settled=settled))
        self.refused = tuple(dict.fromkeys(str(each.error) for each in found))  # subtasks repeat them
        self.lines = tuple(_lines(spec, manifest, settled, {(each.operator, each.state) for each in found}))

    def __str__(self) -> str:
        text = "\n".join(f"  {line}" for line in self.lines) or "  no operator has state"
        return f"{text}\n" + "".join(f"refused: {each}\n" for each in self.refused)


def _lines(spec: JobSpec, manifest: Manifest, settled: bool, refused: set[tuple[str, str]]) -> Iterable[str]:
    before: dict[str, list[OperatorSnapshot]] = {}
    for snapshot in manifest.operators:
        if not snapshot.is_empty:
            before.setdefault(snapshot.operator, []).append(snapshot)
    present = {name for chain in spec.chains for name in chain.operators}
    stateful = [name for chain in spec.chains for name in (*chain.stateful, *chain.sinks)]
    declared = {name: states for chain in spec.chains for name, states in chain.states.items()}
    if manifest.parallelism != spec.parallelism:
        yield f"parallelism {manifest.parallelism} -> {spec.parallelism}: key groups and splits move"
    for name in dict.fromkeys((*stateful, *sorted(before))):
        stored = before.get(name)
        if stored is None:
            yield f"{name}: new, begins without state"
        elif name not in present:
            yield f"{name}: gone; its state is dropped if allow_non_restored is set, refused otherwise"
        else:
            size = sum(ref.size for snapshot in stored for ref in snapshot.files)
            files = f", {counted(size, 'byte')} of files" if size else ""
            changed = _changed(spec, stored, settled)
            wrong = {state for operator, state in refused if operator == name}
            found = f"refused, its {changed}" if changed else "refused" if wrong else "matched"
            yield f"{name}: {found}{files}"
            yield from _states(declared.get(name, {}), stored, wrong)


def _changed(spec: JobSpec, stored: list[OperatorSnapshot], settled: bool) -> str:
    another = next(filter(None, (changed_kind(spec.chains, snapshot, settled=settled) for snapshot in stored)), None)
    if another is not None:
        return f"kind changed: {another.before} -> {another.now}"
    if any(changed_key(spec, snapshot) for snapshot in stored):
        return "key changed"
    column = next(filter(None, (changed_column(spec.chains, snapshot) for snapshot in stored)), None)
    if column is not None:
        return f"column {column[0]} changed from {column[1]} to {column[2]}"
    return "definition changed" if any(changed_definition(spec, snapshot) for snapshot in stored) else ""


def _states(declared: dict[str, StateDescription], stored: list[OperatorSnapshot], refused: set[str]) -> Iterable[str]:
    described: dict[str, StateDescription] = {}
    names: set[str] = set()
    for snapshot in stored:
        if snapshot.keyed is not None:
            described |= snapshot.keyed.described
            names |= {*snapshot.keyed.states, *snapshot.keyed.described}
    yield from _aggregates(declared, described, refused)
    declared, described = _but_aggregates(declared), _but_aggregates(described)
    for name, now in declared.items():
        if name not in names:
            yield f"  state {name}: new, begins empty"
            continue
        before = described.get(name)
        what = [f"{before.kind} -> {now.kind}"] if before is not None and before.kind != now.kind else []
        if before is not None and before.type != now.type:
            what.append("type changed")
        what += [f"{old} renamed to {new}" if new else f"{old} dropped" for old, new in now.renamed.items()]
        yield f"  state {name}: {', '.join(['refused' if name in refused else 'matched', *what])}"
    own = {name for name, what in described.items() if what.kind == "columns" or name.startswith("@")}  # the runtime's
    for name in sorted(described.keys() - own - declared.keys()) if declared else ():
        yield f"  state {name}: no longer declared; its values stay where they are and are not read"


def _aggregates(
    declared: dict[str, StateDescription], described: dict[str, StateDescription], refused: set[str]
) -> Iterable[str]:
    """Older releases described no aggregates."""
    now_there, before_there = aggregates_of(declared), aggregates_of(described)
    if before_there:
        for name in sorted({*now_there, *before_there}):
            now, before = now_there.get(name), before_there.get(name)
            if before is None:
                yield f"  {name}: new, begins at its zero in keys and open windows that are there"
            elif now is None:
                yield f"  {name}: gone; its values are dropped if allow_non_restored is set, refused otherwise"
            else:
                changed = (now.type, now.fields) != (before.type, before.fields)
                found = "refused" if name in refused else "matched"
                yield f"  {name}: {found}{', type changed' if changed else ''}"


def _but_aggregates(states: dict[str, StateDescription]) -> dict[str, StateDescription]:
    return {name: what for name, what in states.items() if what.kind not in COME_AND_GO}
