"""pydantic models as values of state.
A model is written as a map of its fields, like a dataclass, and read by the model itself, so defaults and validators
apply. pydantic is not imported: models are recognized by their attributes."""

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_model(kind: Any) -> TypeGuard[type[Any]]:
    """Returns whether `kind` is a model class of pydantic 2."""
    return (
        isinstance(kind, type)
        and isinstance(getattr(kind, "model_fields", None), Mapping)
        and hasattr(kind, "model_validate")
    )


def stored_names(model: type[Any]) -> dict[str, str]:
    """Returns field -> stored name, which is the name that the model reads.
    Raises `TypeError` for a validation alias that is more than a name."""
    names = {}
    for name, field in model.model_fields.items():
        alias = name if field.validation_alias is None else field.validation_alias
        if not isinstance(alias, str):
            raise TypeError(f"field {name!r} of {model.__name__}, whose alias {alias!r} is not a single name")
        names[name] = alias
    return names


def annotations(model: type[Any]) -> list[tuple[str, Any, bool]]:
    """Returns stored name, type and whether it is required, of each field."""
    fields = model.model_fields
    return [
        (stored, fields[name].annotation, fields[name].is_required()) for name, stored in stored_names(model).items()
    ]


def as_fields(value: Any) -> dict[str, Any]:
    """Returns the stored fields of a model, for msgspec's encoders (`enc_hook`)."""
    if not is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    fields = {stored: getattr(value, name) for name, stored in stored_names(type(value)).items()}
    return {**(value.model_extra or {}), **fields}


def from_fields(kind: Any, fields: Any) -> Any:
    """Returns the model of stored fields, for decoders (`dec_hook`). Raises `ValueError` if the model refuses them."""
    if not is_model(kind):
        raise TypeError(f"Decoding objects of type {kind.__name__} is unsupported")
    return kind.model_validate(fields, strict=False)


def refuses_unknown(model: type[Any]) -> bool:
    return bool(model.model_config.get("extra") == "forbid")
