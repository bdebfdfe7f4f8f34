"""Users' types as msgspec knows them: decoders, and what snapshots say of them (`value_type`)."""

import threading
from typing import Any

import msgspec
from msgspec import inspect

from barrier_runtime.operators.state import models
from barrier_runtime.state.snapshots.value_types import FieldType, ValueType

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


BUILDING = threading.Lock()  # msgspec describes a type at its first use; another thread must not see half of it


def decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with BUILDING:
        return msgspec.msgpack.Decoder(kind, dec_hook=models.from_fields)


def value_type(kind: Any) -> ValueType:
    """Of a type that msgspec knows."""
    with BUILDING:
        return _described(inspect.type_info(kind), ())


def _described(info: inspect.Type, outer: tuple[Any, ...]) -> ValueType:
    """`outer`: the classes around, from the outermost one."""
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
    if isinstance(info, inspect.CustomType) and models.is_model(info.cls):
        return _model(info.cls, outer)
    return ValueType("any")


def _model(model: type[Any], outer: tuple[Any, ...]) -> ValueType:
    if model in outer:
        return ValueType("again", model.__name__, up=len(outer) - outer.index(model))
    fields = tuple(
        FieldType(name, _described(inspect.type_info(kind), (*outer, model)), not required)
        for name, kind, required in models.annotations(model)
    )
    return ValueType("class", model.__name__, fields=fields, strict=models.refuses_unknown(model))


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


PICKLED = ValueType("pickle")
