"""A step's aggregates, or columns of state, from a checkpoint to the program that goes on from it. Pure; asked before a
generation begins.

    checkpoint \\ program    has it                                        has it no more
    had it                  goes on; the state of a user's own must be    dropped, if the user allows it; refused else
                            readable as its type is now
    had it not              begins at its zero, with a warning            -

Snapshots describe each aggregate under a name that `described_name` makes. Those of older releases describe none; then
nothing is known here, and the operator takes no other columns of state than it had.
"""

from collections.abc import Mapping

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import fields_said, misfit

AGGREGATE, COLUMN = "aggregate", "column"  # kinds of a `StateDescription`
COME_AND_GO = frozenset((AGGREGATE, COLUMN))


def described_name(kind: str, what: str) -> str:
    """Among the names of an operator's states, where no state has a space in its name. For people, too."""
    return f"{kind} {what}"


def added_aggregates(now: Mapping[str, StateDescription], before: Mapping[str, StateDescription]) -> list[str]:
    """Those that the checkpoint knows nothing of: they begin at their zero."""
    known = _aggregates(before)
    return [name for name in _aggregates(now) if name not in known] if known else []


def check_aggregates(
    now: Mapping[str, StateDescription], before: Mapping[str, StateDescription], may_drop: bool, where: str
) -> None:
    """Raises `InvalidJob` for one that is gone, unless it `may_drop`, and for a state of a user's own aggregate that
    cannot be read as what it is now. `now`, `before`: all that the program declares, and the snapshot describes."""
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
