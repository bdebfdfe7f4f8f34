"""Aggregates and columns of state across a program change. Pure; used before a generation begins.

    checkpoint \\ program    has the aggregate                             lacks the aggregate
    has the aggregate       continues; the new type must be able to       dropped if the user allows it, else refused
                            read the state of a user's own aggregate
    lacks the aggregate     begins at its initial value, with a warning   -

Snapshots describe each aggregate under a name that `described_name` makes. Snapshots of older releases describe none;
nothing is checked here then, and the operator refuses other columns of state.
"""

from collections.abc import Mapping

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import fields_said, misfit

AGGREGATE, COLUMN = "aggregate", "column"  # kinds of a `StateDescription`
COME_AND_GO = frozenset((AGGREGATE, COLUMN))


def described_name(kind: str, what: str) -> str:
    """Name among the states of an operator, unique because no state's name contains a space.

    Readable for people.
    """
    return f"{kind} {what}"


def added_aggregates(now: Mapping[str, StateDescription], before: Mapping[str, StateDescription]) -> list[str]:
    """Aggregates that the checkpoint does not have: they begin at their initial value."""
    known = _aggregates(before)
    return [name for name in _aggregates(now) if name not in known] if known else []


def check_aggregates(
    now: Mapping[str, StateDescription], before: Mapping[str, StateDescription], may_drop: bool, where: str
) -> None:
    """Checks the aggregates of a program (`now`) against those of a snapshot (`before`).

    Raises `InvalidJob` for a missing aggregate, unless `may_drop`, and for the state of a user's own aggregate that the
    current type cannot read. Other states in `now` and `before` are ignored.
    """
    declared, known = _aggregates(now), _aggregates(before)
    gone = [name for name in known if name not in declared]
    if gone and declared and not may_drop:
        raise InvalidJob(
            f"{where}: the checkpoint has values of {', '.join(gone)}, which the program has no more: give the step "
            "all that it had, or set allow_non_restored to drop these values"
        )
    for name in known.keys() & declared.keys():
        _check_state(declared[name], known[name], f"{where}, {name}")


def _aggregates(described: Mapping[str, StateDescription]) -> dict[str, StateDescription]:
    return {name: what for name, what in described.items() if what.kind in COME_AND_GO}


def _check_state(now: StateDescription, before: StateDescription, where: str) -> None:
    if now.type is None or before.type is None:
        if now.fields == before.fields and (now.type is None) == (before.type is None):
            return
        raise InvalidJob(
            f"{where}: its state was {_columns(before)} in the checkpoint and is {_columns(now)} now: declare it "
            "as it was, or give it another name, under which it begins at its zero"
        )
    gone = [field for field in before.fields if field not in now.fields]
    added = [field for field in now.fields if before.fields and field not in before.fields]
    if gone and added:
        raise InvalidJob(
            f"{where}: the class of its state has lost {fields_said(gone)} since the checkpoint, and "
            f"{fields_said(added)} {'is' if len(added) == 1 else 'are'} new, so what became of its values cannot be "
            "known: keep the names of its fields, or give the result another name, under which it begins at its zero"
        )
    wrong = misfit(before.type, now.type, {})
    if wrong is not None:
        raise InvalidJob(
            f"{where}: {f'the field {wrong.path} of its state' if wrong.path else 'its state'} was {wrong.before} in "
            f"the checkpoint and is {wrong.now} now{f' ({wrong.why})' if wrong.why else ''}: keep the type readable (a "
            "default for what is new, a wider type), or give the result another name, under which it begins at its zero"
        )


def _columns(what: StateDescription) -> str:
    return f"columns ({', '.join(what.fields)})" if what.type is None else "a value"
