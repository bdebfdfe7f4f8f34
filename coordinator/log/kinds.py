"""Decides whether a job's step can continue with a snapshot's state. Pure.

Each snapshot names the kind of the writing step (`KIND`), a sink's also the target (`TARGET`).

| the snapshot's kind                    | the job's step of that name          | result                              |
|----------------------------------------|--------------------------------------|-------------------------------------|
| the same kind                          |                                      | continues                           |
| unknown (earlier releases)             | keeps state                          | continues                           |
| unknown                                | keeps none, such as a map            | refused                             |
| a source without the name of a system  | any source                           | continues, as far as splits allow   |
| a sink                                 | a sink of another kind or target     | continues if the sink keeps no row, |
|                                        |                                      | and every transaction is visible    |
| any other                              | another kind                         | refused                             |
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from barrier_runtime.coordinator.wire.messages import ChainSpec
from barrier_runtime.state.snapshots.snapshot import (
    COLUMN_TYPES,
    KEYS,
    KIND,
    OWN,
    PENDING,
    SHARED,
    TARGET,
    OperatorSnapshot,
)

SOURCE, SINK = "source", "sink"
_JOINS = frozenset(("join", "window_join", "asof_join", "table_join"))
# Values and tables that identify the kind in earlier releases' snapshots. Users' functions have tables of any name, and
# always timers.
_BY_VALUE = {
    "splits": frozenset((SOURCE,)),
    "lookup-rows": frozenset(("lookup",)),
    "deduplicate": frozenset(("deduplicate",)),
    "runs": _JOINS,
    "slices": frozenset(("window",)),
    f"{SHARED}switches": frozenset(("connect",)),
    f"{SHARED}broadcast": frozenset(("connect",)),
}
_TIMERS = "@timers"
_BY_TABLE = {"running": "running aggregate", "windows": "window", "groups": "process_groups", "seen": "deduplicate"}
_SINK_VALUES = ("sink", PENDING)


def with_kinds(chains: Sequence[ChainSpec], snapshots: Iterable[OperatorSnapshot]) -> Iterator[OperatorSnapshot]:
    said = {name: {KIND: kind.encode()} for chain in chains for name, kind in chain.kinds.items()}
    for chain in chains:
        for name, target in chain.targets.items():
            said.setdefault(name, {})[TARGET] = target.encode()
        for name, columns in chain.columns.items():
            said.setdefault(name, {})[COLUMN_TYPES] = msgspec.json.encode(columns)
    for snapshot in snapshots:
        more = said.get(snapshot.operator) if _has_state(snapshot) else None
        yield msgspec.structs.replace(snapshot, values={**snapshot.values, **more}) if more else snapshot


def _has_state(snapshot: OperatorSnapshot) -> bool:
    return bool(snapshot.values or snapshot.objects or snapshot.keyed)


@dataclass(frozen=True)
class ChangedKind:
    """`pending`: refused because of possibly invisible transactions."""

    before: str
    now: str
    pending: bool = False

    def refusal(self, what: str, operator: str) -> str:
        if self.pending:
            return (
                f"{what} has transactions of {operator!r} as {self.before}, which are decided and may not be visible "
                f"yet, but the job now has it as {self.now}, which cannot commit them: give the new sink another name, "
                "and set allow_non_restored: then they are committed first, to where the old sink wrote"
            )
        return (
            f"{what} has state of {operator!r} as {self.before}, but the job now has it as {self.now}, which cannot go "
            "on with that state: give the new step another name to start without state, and set allow_non_restored to "
            "drop what the old name had; or make the step what it was"
        )


def changed_kind(
    chains: Sequence[ChainSpec], snapshot: OperatorSnapshot, *, settled: bool = False
) -> ChangedKind | None:
    """Returns None if the step can continue with the state.

    `settled`: all transactions of the checkpoint are visible.
    """
    if not _has_state(snapshot):
        return None  # at most rows in flight
    name = snapshot.operator
    now = next((chain.kinds[name] for chain in chains if name in chain.kinds), "")
    before = _kinds_before(snapshot)
    if any(name in (*chain.stateful, *chain.sinks) for chain in chains):
        if not now or not before or now in before:
            return _changed_target(chains, snapshot, settled)
        if _family(now) == SOURCE and SOURCE in before and KIND not in snapshot.values:
            return None
        if _family(now) == SINK and all(_family(kind) == SINK for kind in before):
            changed = ChangedKind(_shown(before), _shown((now,)), pending=True)
            return changed if _holds_rows(snapshot, settled) else None
        return ChangedKind(_shown(before), _shown((now,)))
    if not now and not before:
        return None
    return ChangedKind(_shown(before) or "a step with state", f"{_shown((now,)) if now else 'a step'} without state")


def _changed_target(chains: Sequence[ChainSpec], snapshot: OperatorSnapshot, settled: bool) -> ChangedKind | None:
    before = snapshot.values.get(TARGET, b"").decode(errors="replace")
    targets = (chain.targets.get(snapshot.operator, "") for chain in chains)
    now = next(filter(None, targets), "")
    if not before or not now or before == now or not _holds_rows(snapshot, settled):
        return None
    return ChangedKind(f"a sink of {before}", f"a sink of {now}", pending=True)


def changed_column(chains: Sequence[ChainSpec], snapshot: OperatorSnapshot) -> tuple[str, str, str] | None:
    """Returns a changed column, and the types before and now. State without rows depends on no column."""
    before = snapshot.values.get(COLUMN_TYPES)
    if before is None or KEYS not in snapshot.values:
        return None
    known = _COLUMNS.decode(before)
    now = next((chain.columns[snapshot.operator] for chain in chains if snapshot.operator in chain.columns), {})
    return next(((name, known[name], now[name]) for name in now if known.get(name, now[name]) != now[name]), None)


def _kinds_before(snapshot: OperatorSnapshot) -> frozenset[str]:
    """Possible kinds of the writing step; empty if unknown."""
    kind = snapshot.values.get(KIND)
    if kind is not None:
        return frozenset((kind.decode(errors="replace"),))
    named = {*snapshot.values, *snapshot.objects}
    if not named.isdisjoint(_SINK_VALUES):
        return frozenset((_kind_of_sink(snapshot.values.get("sink", b"")),))
    for value, kinds in _BY_VALUE.items():
        if value in named:
            return kinds
    if snapshot.keyed is None:
        return frozenset()
    tables = snapshot.keyed.states
    if _TIMERS in tables:
        return frozenset(("process", "connect"))
    described = snapshot.keyed.described
    return frozenset(
        kind
        for table, kind in _BY_TABLE.items()
        if tables.keys() == {table} and (table not in described or described[table].kind == "columns")
    )


class _SinkValue(msgspec.Struct):
    kind: str = ""


class _Pending(msgspec.Struct):
    entries: tuple[msgspec.Raw, ...] = ()


_SINK_VALUE = msgspec.json.Decoder(_SinkValue)
_COLUMNS = msgspec.json.Decoder(dict[str, str])
_PENDING = msgspec.json.Decoder(_Pending)


def _kind_of_sink(value: bytes) -> str:
    try:
        kind = _SINK_VALUE.decode(value).kind if value else ""
    except msgspec.MsgspecError:
        kind = ""
    return f"{SINK}: {kind}" if kind else SINK


def _holds_rows(snapshot: OperatorSnapshot, settled: bool) -> bool:
    """Returns whether a sink's snapshot has possibly invisible transactions, or kept rows."""
    if any(name.startswith(OWN) for name in (*snapshot.values, *snapshot.objects)):
        return True
    if settled:
        return False
    data = snapshot.values.get(PENDING)
    if data is None:
        return PENDING in snapshot.objects  # many transactions are an object
    try:
        return bool(_PENDING.decode(data).entries)
    except msgspec.MsgspecError:
        return True


def _family(kind: str) -> str:
    return kind.partition(":")[0]


def _shown(kinds: Iterable[str]) -> str:
    said: Sequence[str] = [_shown_kind(kind) for kind in sorted(kinds)]
    return " or ".join(said)


def _shown_kind(kind: str) -> str:
    family, _, more = kind.partition(": ")
    if family == SOURCE:
        return f"a source of {more}" if more else "a source"
    if family == SINK:
        return f"a {more} sink" if more else "a sink"
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind} step"
