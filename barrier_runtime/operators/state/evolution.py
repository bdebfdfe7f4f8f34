"""Named fields of a stored class, and their names in earlier versions of a program. Pure.

What becomes of fields and types from a checkpoint to a program is decided in `state.snapshots.continued_state`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from barrier_runtime.operators.state import models
from barrier_runtime.state.errors import InvalidJob

Renamed: TypeAlias = Mapping[str, str | None]

_read, _write = msgspec.msgpack.Decoder().decode, msgspec.msgpack.Encoder().encode


def fields_of(kind: Any) -> tuple[str, ...]:
    """Names under which a class's fields are written; none for what is not written by name."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return () if kind.__struct_config__.array_like else tuple(kind.__struct_encode_fields__)
    if models.is_model(kind):
        return tuple(models.stored_names(kind).values())
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
    inner = next((name for pair in renamed.items() for name in pair if _is_inner(name, fields)), None)
    if inner is not None:
        raise InvalidJob(
            f"{says} renamed={renamed!r}: {inner!r} is a field of an inner class, and renamed= is of the outer one "
            f"alone, which has {', '.join(fields)}: make the inner class a msgspec.Struct whose field keeps the "
            "stored name, as in cents: int = msgspec.field(name='price'); or pass migrate=[a function of the old value]"
        )
    for old, new in renamed.items():
        if old in fields:
            raise InvalidJob(f"{says} renamed={renamed!r}: the class still has a field {old!r}: leave that name out")
        if new is not None and new not in fields:
            raise InvalidJob(
                f"{says} renamed={renamed!r}: the class has no field {new!r}, only {', '.join(fields)}: name one of "
                "them, or None for a field that is dropped"
            )
    return dict(renamed)


def _is_inner(name: Any, fields: tuple[str, ...]) -> bool:
    """Whether it says a field of what a field holds, such as "lines[].price". A name under which a `msgspec.Struct` is
    written may have a dot, too."""
    return isinstance(name, str) and name not in fields and re.split(r"[.\[]", name, maxsplit=1)[0] in fields


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
