"""A state across a program change: the description in later snapshots, or the reason for a refusal.

docs/state.md and docs/aggregates.md have tables of all changes. Entries are migrated when rewritten, so entries of
several versions coexist, and all later descriptions have the earlier names of fields. A new field may therefore not
have a name that old entries have for another field. A lost field without `renamed` is dropped, or refused if there is a
new field, which could be the lost field.

Each function in `migrate` begins a version of the values, of any type; entries carry their version. Within a version
types may change by the rules of `value_types`.

Snapshots of older releases describe no aggregates; the operator then refuses other columns of state.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import Misfit, ValueType, fields_said, loses, misfit, to_floats


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


def check_kind(now: StateDescription, before: StateDescription, where: str) -> None:
    if (before.kind, before.key) != (now.kind, now.key):
        raise InvalidJob(
            f"{where} was written as {_said(before)} and is {_said(now)} now: declare it as it was, or give the "
            "changed state a new name, under which it begins empty"
        )


def continued(now: StateDescription, before: StateDescription | None, where: str) -> StateDescription:
    """Description for later snapshots, except for the TTL.

    `now` has the program's `renamed`, and a version per function in `migrate`. `before`: restored description; None:
    the state is new. Raises `InvalidJob` if values could be lost without consent, or could not be read.
    """
    if before is None:
        return msgspec.structs.replace(now, renamed={})
    check_kind(now, before, where)
    known, given = len(before.versions), len(now.versions)
    if given < known:
        raise InvalidJob(
            f"{where}: the checkpoint has values of version {known}, which {known} functions in migrate= made, but the "
            f"program has {given or 'none'}: keep all of them, in their order, as long as there is state"
        )
    if given > known:
        if now.renamed:
            raise InvalidJob(
                f"{where}: renamed={now.renamed!r} and a new function in migrate= at once: let the function give the "
                "fields their new names, and leave renamed= out"
            )
        if before.type is not None and before.type.kind == "pickle":
            raise InvalidJob(
                f"{where}: pickled values cannot be migrated: keep codec='pickle' and what its class reads, or give "
                "the changed state a new name, under which it begins empty"
            )
        return msgspec.structs.replace(now, versions=(*before.versions, before.renamed, *[{}] * (given - known - 1)))
    names = _names_of_fields(now, before, where) if now.fields else {}
    earlier = before.earlier
    if now.type is not None and before.type is not None and now.type != before.type:
        wrong = misfit(before.type, now.type, names)
        if wrong is not None:
            raise InvalidJob(f"{where}: {_told(wrong)}")
        _check_earlier(earlier, now.type, names, where)
        kept = loses(before.type, now.type, names) or to_floats(before.type, now.type, names)
        if kept and before.type not in earlier:
            earlier = (*earlier, before.type)
    return msgspec.structs.replace(now, renamed=names, versions=before.versions, earlier=earlier)


def _check_earlier(earlier: tuple[ValueType, ...], now: ValueType, names: dict[str, str | None], where: str) -> None:
    found = (misfit(each, now, names, earlier=True) for each in earlier)
    wrong = next((each for each in found if each is not None), None)
    if wrong is not None:
        raise InvalidJob(f"{where}: {_told(wrong, 'in entries of an earlier version')}")


def _names_of_fields(now: StateDescription, before: StateDescription, where: str) -> dict[str, str | None]:
    """Other names of the current fields in entries of this version."""
    fields, renamed = now.fields, now.renamed
    earlier = {old: None if new is None else renamed.get(new, new) for old, new in before.renamed.items()}
    names = {**earlier, **renamed}
    names = {old: new for old, new in names.items() if old != new}  # a field may have the old name again
    again = [name for name in fields if name in names]
    if again:
        raise InvalidJob(
            f"{where}: entries of earlier versions may have a field {again[0]!r}, which became "
            f"{names[again[0]] or 'dropped'!r}: give the new field another name"
        )
    gone = [name for name in before.fields if name not in fields and name not in names]
    known = {*before.fields, *before.renamed}  # other names explain no new field
    explained = {new for old, new in names.items() if old in known}
    added = [name for name in fields if before.fields and name not in before.fields and name not in explained]
    if gone and added:
        raise InvalidJob(
            f"{where}: its class has lost {fields_said(gone)} since the checkpoint, and {fields_said(added)} "
            f"{'is' if len(added) == 1 else 'are'} new: say what became of what, with renamed={{{gone[0]!r}: "
            f"{added[0]!r}}}, or renamed={{{gone[0]!r}: None}} if its values may go"
        )
    return names


def _told(wrong: Misfit, there: str = "in the checkpoint") -> str:
    place = f"its field {wrong.path} was" if wrong.path else "its values were"
    why = f" ({wrong.why})" if wrong.why else ""
    return (
        f"{place} {wrong.before} {there} and {'is' if wrong.path else 'are'} {wrong.now} now{why}: keep the "
        "type readable (a default for what is new, a wider type), pass migrate=[a function of the old value], or give "
        "the changed state a new name, under which it begins empty"
    )


def _said(what: StateDescription) -> str:
    said = what.row.said
    return f"{said} with keys of type {what.key}" if what.key else said


AGGREGATE, COLUMN = "aggregate", "column"  # kinds of a `StateDescription`
COME_AND_GO = frozenset((AGGREGATE, COLUMN))


def described_name(kind: str, what: str) -> str:
    """Returns a unique name, because names of states contain no space."""
    return f"{kind} {what}"


def added_aggregates(now: Mapping[str, StateDescription], before: Mapping[str, StateDescription]) -> list[str]:
    known = aggregates_of(before)
    return [name for name in aggregates_of(now) if name not in known] if known else []


def unfit_aggregates(
    now: Mapping[str, StateDescription], before: Mapping[str, StateDescription], may_drop: bool, where: str
) -> Iterator[tuple[str, InvalidJob]]:
    """Yields refusals with their aggregates ("" for lost aggregates)."""
    declared, known = aggregates_of(now), aggregates_of(before)
    gone = [name for name in known if name not in declared]
    if gone and declared and not may_drop:
        text = (
            f"{where}: the checkpoint has values of {', '.join(gone)}, which the program has no more: give the step "
            "all that it had, or set allow_non_restored to drop these values"
        )
        yield "", InvalidJob(text)
    for name in known:
        if name in declared:
            try:
                _check_state(declared[name], known[name], f"{where}, {name}")
            except InvalidJob as error:
                yield name, error


_LIMIT = re.compile(r"(aggregate count_distinct\(.*), limit=[0-9]+\)")  # counts of any limit share their state


def aggregates_of(described: Mapping[str, StateDescription]) -> dict[str, StateDescription]:
    return {_LIMIT.sub(r"\1)", name): what for name, what in described.items() if what.kind in COME_AND_GO}
