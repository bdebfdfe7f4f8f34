"""Annotated fields of dataclasses, `msgspec.Struct`, pydantic models, TypedDict and NamedTuple."""

import dataclasses
import typing
from typing import Any

from barrier_runtime.state.errors import InvalidJob


def fields_of_class(kind: type) -> dict[str, Any]:
    """Fields of a class and its bases by column name; empty for a class without fields."""
    return {column_name(kind, name): hint for name, hint in hints_of(kind).items()}


def column_name(kind: type, attribute: str) -> str:
    """Name of a field's column: the encoded name of a renamed field of a `msgspec.Struct`."""
    names = dict(
        zip(getattr(kind, "__struct_fields__", ()), getattr(kind, "__struct_encode_fields__", ()), strict=True)
    )
    return str(names.get(attribute, attribute))


def hints_of(kind: type) -> dict[str, Any]:
    model = getattr(kind, "model_fields", None)  # pydantic
    made_of_fields = (
        dataclasses.is_dataclass(kind)
        or isinstance(model, dict)
        or hasattr(kind, "__struct_fields__")  # msgspec
        or hasattr(kind, "__total__")  # a TypedDict
        or hasattr(kind, "_fields")  # a NamedTuple
    )
    if not made_of_fields:
        return {}
    try:
        hints = typing.get_type_hints(kind, include_extras=not hasattr(kind, "__total__"))
    except NameError as error:
        raise InvalidJob(
            f"class {kind.__name__}: the annotation {error.name!r} is not known in its module: define or import it at "
            "the top level of the module"
        ) from error
    return {
        name: hint
        for name, hint in hints.items()
        if typing.get_origin(hint) is not typing.ClassVar and name in _own(kind, hints)
    }


def _own(kind: type, hints: dict[str, Any]) -> set[str]:
    """A model's base class has annotations that are not fields."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    model = getattr(kind, "model_fields", None)
    return set(model) if isinstance(model, dict) else set(hints)
