"""Users' types as msgspec sees them: decoders, descriptions in snapshots, fields and earlier names.

Pure.
"""

import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

import msgspec
from msgspec import inspect

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.value_types import MADE_ANEW, FieldType, ValueType


def is_model(kind: Any) -> TypeGuard[type[Any]]:
    return (
        isinstance(kind, type)
        and isinstance(getattr(kind, "model_fields", None), Mapping)
        and hasattr(kind, "model_validate")
    )


def stored_names(model: type[Any]) -> dict[str, str]:
    """Returns field -> stored name, the name that the model reads.
    Raises `TypeError` for a validation alias that is more than a name."""
    names = {}
    for name, field in model.model_fields.items():
        alias = name if field.validation_alias is None else field.validation_alias
        if not isinstance(alias, str):
            raise TypeError(f"field {name!r} of {model.__name__}, whose alias {alias!r} is not a single name")
        names[name] = alias
    return names


def annotations(model: type[Any]) -> list[tuple[str, Any, bool]]:
    fields = model.model_fields
    return [
        (stored, fields[name].annotation, fields[name].is_required()) for name, stored in stored_names(model).items()
    ]


def as_fields(value: Any) -> dict[str, Any]:
    """`enc_hook` of msgspec's encoders: stored fields of a model."""
    if not is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    fields = {stored: getattr(value, name) for name, stored in stored_names(type(value)).items()}
    return {**(value.model_extra or {}), **fields}


def from_fields(kind: Any, fields: Any) -> Any:
    """`dec_hook` of decoders: the model of stored fields. Raises `ValueError` if the model refuses them."""
    if not is_model(kind):
        raise TypeError(f"Decoding objects of type {kind.__name__} is unsupported")
    return kind.model_validate(fields, strict=False)


def refuses_unknown(model: type[Any]) -> bool:
    return bool(model.model_config.get("extra") == "forbid")


Renamed: TypeAlias = Mapping[str, str | None]

_read, _write = msgspec.msgpack.Decoder().decode, msgspec.msgpack.Encoder().encode


def fields_of(kind: Any) -> tuple[str, ...]:
    """Names under which a class's fields are written; empty for types not written by name."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return () if kind.__struct_config__.array_like else tuple(kind.__struct_encode_fields__)
    if is_model(kind):
        return tuple(stored_names(kind).values())
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return ()


def check_renamed(renamed: Any, fields: tuple[str, ...], says: str) -> dict[str, str | None]:
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
    """Returns whether `name` is a path into a field, such as "lines[].price"."""
    return isinstance(name, str) and name not in fields and re.split(r"[.\[]", name, maxsplit=1)[0] in fields


def by_new_names(decode: Callable[[bytes], Any], renamed: Renamed) -> Callable[[bytes], Any]:
    if not any(renamed.values()):
        return decode
    changed = {old: new for old, new in renamed.items() if new is not None}

    def decoded(data: bytes) -> Any:
        fields = _read(data)
        if isinstance(fields, dict) and not changed.keys().isdisjoint(fields):
            data = _write({changed.get(name, name): value for name, value in fields.items()})
        return decode(data)

    return decoded


_PLAIN: dict[type[inspect.Type], str] = {
    inspect.NoneType: "none",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.TimeType: "time",
    inspect.DateType: "date",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}


# other threads must not see msgspec's half-built description of a type
BUILDING = threading.Lock()


def decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with BUILDING:
        return msgspec.msgpack.Decoder(kind, dec_hook=from_fields)


def value_type(kind: Any) -> ValueType:
    with BUILDING:
        return _described(inspect.type_info(kind), ())


def _described(info: inspect.Type, outer: tuple[Any, ...]) -> ValueType:
    plain = _PLAIN.get(type(info))
    if plain is not None:
        return ValueType(plain)
    if isinstance(info, inspect.CollectionType):
        return ValueType("list", of=(_described(info.item_type, outer),))
    if isinstance(info, inspect.TupleType):
        return ValueType("tuple", of=tuple(_described(item, outer) for item in info.item_types))
    if isinstance(info, inspect.DictType):
        return ValueType("dict", of=(_described(info.key_type, outer), _described(info.value_type, outer)))
    if isinstance(info, inspect.UnionType):
        return ValueType("union", of=tuple(_described(member, outer) for member in info.types))
    if isinstance(info, inspect.LiteralType):
        return ValueType("choice", values=tuple(info.values))
    if isinstance(info, inspect.EnumType):
        return ValueType("choice", info.cls.__name__, values=tuple(member.value for member in info.cls))
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.NamedTupleType | inspect.TypedDictType):
        return _class(info, outer)
    if isinstance(info, inspect.CustomType) and is_model(info.cls):
        return _model(info.cls, outer)
    return ValueType("any")


def _model(model: type[Any], outer: tuple[Any, ...]) -> ValueType:
    if model in outer:
        return ValueType("again", model.__name__, up=len(outer) - outer.index(model))
    fields = tuple(
        FieldType(name, _described(inspect.type_info(kind), (*outer, model)), not required)
        for name, kind, required in annotations(model)
    )
    return ValueType("class", model.__name__, fields=fields, strict=refuses_unknown(model))


def _class(
    info: inspect.StructType | inspect.DataclassType | inspect.NamedTupleType | inspect.TypedDictType,
    outer: tuple[Any, ...],
) -> ValueType:
    if info.cls in outer:
        return ValueType("again", info.cls.__name__, up=len(outer) - outer.index(info.cls))
    struct = info if isinstance(info, inspect.StructType) else None
    lacking = isinstance(info, inspect.TypedDictType) or (
        struct is not None and struct.cls.__struct_config__.omit_defaults
    )
    in_order = isinstance(info, inspect.NamedTupleType) or (struct is not None and struct.array_like)
    fields = tuple(
        FieldType(
            field.encode_name,
            _described(field.type, (*outer, info.cls)),
            not field.required,
            absent=lacking and not field.required,
            filled=_default_said(field) if struct is not None and not field.required else "",
        )
        for field in info.fields
    )
    return ValueType(
        "array" if in_order else "class",
        info.cls.__name__,
        fields=fields,
        tag="" if struct is None or struct.tag is None else str(struct.tag),
        strict=isinstance(info, inspect.NamedTupleType) or (struct is not None and struct.forbid_unknown_fields),
    )


def _default_said(field: inspect.Field) -> str:
    """msgspec omits a default, and of factories an empty list, dict or set."""
    factory = None if field.default_factory is msgspec.NODEFAULT else field.default_factory
    if factory not in (None, list, dict, set):
        return MADE_ANEW
    try:
        default = field.default if factory is None else factory()
        return msgspec.json.encode(default, enc_hook=as_fields, order="deterministic").decode()
    except Exception:  # a value without text
        return ""


PICKLED = ValueType("pickle")
_write_value = msgspec.msgpack.Encoder(enc_hook=as_fields).encode


def exact_floats(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Returns `decode`, which raises `msgspec.ValidationError` for a stored int that a float would round."""

    def exact(data: bytes) -> Any:
        value = decode(data)
        if b"\xcf" in data or b"\xd3" in data:  # heads of ints with 8 bytes
            rounded = _rounded(_read(data), _read(_write_value(value)))
            if rounded is not None:
                raise msgspec.ValidationError(f"a float does not hold all digits of {rounded}")
        return value

    return exact


def _rounded(stored: Any, read: Any) -> int | None:
    """First int of `stored` that is another number in `read`."""
    pairs: list[tuple[Any, Any]] = []
    if type(stored) is int and type(read) is float:
        return None if stored == read else stored
    if isinstance(stored, dict) and isinstance(read, dict):
        if any(type(key) is float for key in read):
            lost = next((key for key in stored if type(key) is int and key not in read), None)
            if lost is not None:
                return lost
        pairs = [(each, read[key]) for key, each in stored.items() if key in read]
    elif isinstance(stored, list) and isinstance(read, list):
        numbers = {each for each in read if type(each) in (int, float)}  # of a set, in another order
        pairs = [pair for pair in zip(stored, read, strict=False) if type(pair[0]) is not int or pair[0] not in numbers]
    return next((found for found in itertools.starmap(_rounded, pairs) if found is not None), None)
