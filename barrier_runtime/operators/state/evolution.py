"""Fields of a stored class, from one version of a program to the next. Pure.

Entries are migrated when they are written again, so those of several versions lie side by side, each with the names it
was written with. What a field was called is therefore part of the state's description in snapshots, for ever:

    checkpoint \\ program    has the field               has it no more
    had the field           as ever                     `renamed` says what became of it: read under the new name, or
                                                        dropped (None); without a word dropped if nothing is new, else
                                                        refused: which of the new ones it is cannot be known
    had it not              its default, in old entries -
    had it renamed          refused: old entries have   read under the name that it has now
                            another field of that name
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription

Renamed: TypeAlias = Mapping[str, str | None]

_read, _write = msgspec.msgpack.Decoder().decode, msgspec.msgpack.Encoder().encode


def fields_of(kind: Any) -> tuple[str, ...]:
    """Names under which a class's fields are written; none for what is not written by name."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return () if kind.__struct_config__.array_like else tuple(kind.__struct_encode_fields__)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return ()


def check_renamed(renamed: Any, fields: tuple[str, ...], says: str) -> dict[str, str | None]:
    """`renamed=` of a state that `says` declares. Raises `InvalidJob` for one that does not suit its fields."""
    if renamed is None:
        return {}
    if not isinstance(renamed, Mapping) or not all(isinstance(name, str) for name in renamed):
        raise InvalidJob(f"{says} renamed={renamed!r}: pass a dict of old name to new, such as {{'old': 'new'}}")
    if not fields:
        raise InvalidJob(f"{says} renamed={renamed!r}: its values have no named fields: leave it out")
    for old, new in renamed.items():
        if old in fields:
            raise InvalidJob(f"{says} renamed={renamed!r}: the class still has a field {old!r}: leave that name out")
        if new is not None and new not in fields:
            raise InvalidJob(
                f"{says} renamed={renamed!r}: the class has no field {new!r}, only {', '.join(fields)}: name one of "
                "them, or None for a field that is dropped"
            )
    return dict(renamed)


def continued(
    now: StateDescription,
    fields: tuple[str, ...],
    renamed: Renamed,
    before: StateDescription | None,
    where: str,
) -> StateDescription:
    """`now` with what snapshots say of fields from here on. `before`: what the restored one says; None: the state is
    new. Raises `InvalidJob` where values could be lost without a word."""
    if not fields:
        return now
    if before is None:
        return msgspec.structs.replace(now, fields=fields)
    earlier = {old: None if new is None else renamed.get(new, new) for old, new in before.renamed.items()}
    names = {**earlier, **renamed}
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
            f"{where}: its class has lost {_quoted(gone)} since the checkpoint, and {_quoted(added)} "
            f"{'is' if len(added) == 1 else 'are'} new: say what became of what, with renamed={{{gone[0]!r}: "
            f"{added[0]!r}}}, or renamed={{{gone[0]!r}: None}} if its values may go"
        )
    return msgspec.structs.replace(now, fields=fields, renamed=names)


def _quoted(names: list[str]) -> str:
    return f"the field{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"


def by_new_names(decode: Callable[[bytes], Any], renamed: Renamed) -> Callable[[bytes], Any]:
    """`decode` for entries that may have earlier names."""
    if not any(renamed.values()):  # what is dropped is passed over anyway
        return decode
    changed = {old: new for old, new in renamed.items() if new is not None}

    def decoded(data: bytes) -> Any:
        fields = _read(data)
        if isinstance(fields, dict) and not changed.keys().isdisjoint(fields):
            data = _write({changed.get(name, name): value for name, value in fields.items()})
        return decode(data)

    return decoded
