"""One state from a checkpoint to the program that goes on from it: what snapshots say of it from here on, or why it
cannot be. Pure; asked before a new generation begins (`coordinator.log.restore_choice`) and when the state is opened.

Entries are migrated when they are written again, so those of several versions lie side by side, each with the names it
was written with. What a field was called is therefore part of the state's description in snapshots, for ever:

    checkpoint \\ program    has the field               has it no more
    had the field           as ever                     `renamed` says what became of it: read under the new name, or
                                                        dropped (None); without a word dropped if nothing is new, else
                                                        refused: which of the new ones it is cannot be known
    had it, and lost it     old entries have it: read   -
                            if its type allows that
    had it not              its default, in old entries -
    had it renamed          refused: old entries have   read under the name that it has now
                            another field of that name

Each function in `migrate` begins a new version of the values, with names of its own; entries say which version they are
of. A program with more functions than the checkpoint knows of begins a version, so its type may be any; one with fewer
cannot read the entries and is refused. Within a version types may change as `value_types` has it.
"""

import msgspec

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import Misfit, ValueType, fields_said, loses, misfit


def check_kind(now: StateDescription, before: StateDescription, where: str) -> None:
    """Raises `InvalidJob` unless both are the same kind of state."""
    if (before.kind, before.key) != (now.kind, now.key):
        raise InvalidJob(
            f"{where} was written as {_said(before)} and is {_said(now)} now: declare it as it was, or give the "
            "changed state a new name, under which it begins empty"
        )


def continued(now: StateDescription, before: StateDescription | None, where: str) -> StateDescription:
    """`now`, as the program declares it (`renamed` as it says; a version for each function in `migrate`), with what
    snapshots say from here on, but for its TTL. `before`: what the restored one says; None: the state is new. Raises
    `InvalidJob` where values could be lost without a word or not be read."""
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
        if before.type not in earlier and loses(before.type, now.type, names):
            earlier = (*earlier, before.type)
    return msgspec.structs.replace(now, renamed=names, versions=before.versions, earlier=earlier)


def _check_earlier(earlier: tuple[ValueType, ...], now: ValueType, names: dict[str, str | None], where: str) -> None:
    """Entries that were not written again may still be of these types."""
    found = (misfit(each, now, names, earlier=True) for each in earlier)
    wrong = next((each for each in found if each is not None), None)
    if wrong is not None:
        raise InvalidJob(f"{where}: {_told(wrong, 'in entries of an earlier version')}")


def _names_of_fields(now: StateDescription, before: StateDescription, where: str) -> dict[str, str | None]:
    """All names that entries of this version may have for what is called otherwise now."""
    fields, renamed = now.fields, now.renamed
    earlier = {old: None if new is None else renamed.get(new, new) for old, new in before.renamed.items()}
    names = {**earlier, **renamed}
    names = {old: new for old, new in names.items() if old != new}  # others have their old name again
    again = [name for name in fields if name in names]
    if again:
        raise InvalidJob(
            f"{where}: entries of earlier versions may have a field {again[0]!r}, which became "
            f"{names[again[0]] or 'dropped'!r}: give the new field another name"
        )
    gone = [name for name in before.fields if name not in fields and name not in names]
    known = {*before.fields, *before.renamed}  # what entries may have; a name that none has explains nothing
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
