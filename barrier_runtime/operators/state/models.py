"""pydantic's models as values of state. They are written as a dataclass is, a map of their fields, and read by the
model itself, so its defaults and validators hold. pydantic is not imported: a model is told by what it has.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_model(kind: Any) -> TypeGuard[type[Any]]:
    """Whether `kind` is a class of pydantic 2."""
    return (
        isinstance(kind, type)
        and isinstance(getattr(kind, "model_fields", None), Mapping)
        and hasattr(kind, "model_validate")
    )


def stored_names(model: type[Any]) -> dict[str, str]:
    """Field → name under which it is written, which is the one that the model reads. Raises `TypeError` where that is
    more than a name."""
    names = {}
    for name, field in model.model_fields.items():
        alias = name if field.validation_alias is None else field.validation_alias
        if not isinstance(alias, str):
            raise TypeError(f"field {name!r} of {model.__name__}, whose alias {alias!r} is not a single name")
        names[name] = alias
    return names


def annotations(model: type[Any]) -> list[tuple[str, Any, bool]]:
    """Of each field the name under which it is written, its type, and whether it must be there."""
    fields = model.model_fields
    return [
        (stored, fields[name].annotation, fields[name].is_required()) for name, stored in stored_names(model).items()
    ]


def as_fields(value: Any) -> dict[str, Any]:
    """A model as what is written of it, for msgspec's encoders (`enc_hook`)."""
    if not is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    fields = {stored: getattr(value, name) for name, stored in stored_names(type(value)).items()}
    return {**(value.model_extra or {}), **fields}


def from_fields(kind: Any, fields: Any) -> Any:
    """The inverse, for decoders (`dec_hook`). Raises `ValueError` for what the model does not take."""
    if not is_model(kind):
        raise TypeError(f"Decoding objects of type {kind.__name__} is unsupported")
    return kind.model_validate(fields, strict=False)


def refuses_unknown(model: type[Any]) -> bool:
    return bool(model.model_config.get("extra") == "forbid")
