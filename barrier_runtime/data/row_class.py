"""Row classes: dataclasses and `msgspec.Struct` classes whose instances are rows in users' functions.

Design: docs/design/typed-rows.md.
"""

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import pyarrow as pa

from barrier_runtime.data.schemas import as_schema, described
from barrier_runtime.data.values.class_fields import column_name, fields_of_class, hints_of
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from msgspec import Struct

    Instance: TypeAlias = DataclassInstance | Struct
    AnyRow: TypeAlias = dict[str, Any] | Instance
else:
    Instance = AnyRow = Any


class UnfitField(ValueError):
    """A value that a field does not take. `null`: None in a field that is not optional."""

    def __init__(self, said: str, *, null: bool = False) -> None:
        super().__init__(said)
        self.null = null


class ValuePlace(NamedTuple):
    said: str
    optional: bool
    form: "Form | None"  # None: stored as is

    def read(self, value: Any) -> Any:
        """Converts a column's value to the class' value. Raises `UnfitField`."""
        if value is None:
            if self.optional:
                return None
            raise UnfitField(f"{self.said} is null", null=True)
        return value if self.form is None else self.form.read(value)

    def stored(self, value: Any) -> Any:
        """Converts a class' value to the column's value. Raises `UnfitField`."""
        if value is None:
            if self.optional:
                return None
            raise UnfitField(f"{self.said} is None", null=True)
        return value if self.form is None else self.form.stored(value)


class EnumForm(NamedTuple):
    kind: type[enum.Enum]

    def read(self, value: Any) -> Any:
        try:
            return self.kind(value)
        except (ValueError, TypeError):
            raise UnfitField(f"{value!r} is no value of the enum {self.kind.__name__}") from None

    def stored(self, value: Any) -> Any:
        if isinstance(value, self.kind):
            return value.value
        self.read(value)  # dicts and unchecked classes may hold a member's value; others are refused
        return value


class ListForm(NamedTuple):
    element: ValuePlace
    make: Callable[[Iterable[Any]], Any]

    def read(self, value: Any) -> Any:
        element = self.element
        if element.form is not None or (None in value and not element.optional):
            return self.make(map(element.read, value))
        return value if self.make is list else self.make(value)

    def stored(self, value: Any) -> Any:
        if isinstance(value, list | tuple | set | frozenset):
            return [self.element.stored(each) for each in value]
        return value  # the column refuses the value


class MapForm(NamedTuple):
    key: ValuePlace
    item: ValuePlace

    def read(self, value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        return _by_key([(self.key.read(key), self.item.read(item)) for key, item in pairs])

    def stored(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return _by_key([(self.key.stored(key), self.item.stored(item)) for key, item in value.items()])


def _by_key(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for at, key in enumerate(keys) if key in keys[:at])
        raise UnfitField(f"the map has the key {twice!r} twice, and a dict can hold one of the two values")
    return made


class ClassForm(NamedTuple):
    rows: "RowClass"

    def read(self, value: Any) -> Any:
        rows = self.rows
        return rows.make(*[slot.read(value[column]) for _, column, slot in rows.fields])

    def stored(self, value: Any) -> Any:
        rows = self.rows
        if type(value) is rows.kind:
            return {column: slot.stored(getattr(value, attribute)) for attribute, column, slot in rows.fields}
        if isinstance(value, Mapping):
            places = {column: slot for _, column, slot in rows.fields}
            return {name: places[name].stored(each) if name in places else each for name, each in value.items()}
        return value


Form: TypeAlias = EnumForm | ListForm | MapForm | ClassForm


class ClassField(NamedTuple):
    attribute: str
    column: str
    slot: ValuePlace


@dataclass(frozen=True)
class RowClass:
    """Columns of a class of rows. `by_position`: the constructor takes all fields in order."""

    kind: type
    fields: tuple[ClassField, ...]
    schema: pa.Schema
    by_position: bool

    @property
    def name(self) -> str:
        return self.kind.__name__

    @property
    def make(self) -> Callable[..., Any]:
        attributes = [field.attribute for field in self.fields]
        make: Any = self.kind if self.by_position else partial(_by_keywords, self.kind, attributes)
        return partial(_not_stopped, make) if _runs_code(self.kind) else make

    @property
    def is_frozen(self) -> bool:
        of_struct, of_dataclass = (
            getattr(self.kind, name, None) for name in ("__struct_config__", "__dataclass_params__")
        )
        return bool(getattr(of_struct or of_dataclass, "frozen", False))

    @property
    def getters(self) -> list[Callable[[Any], Any]]:
        return [
            attrgetter(attribute) if slot.form is None else partial(_stored_field, attrgetter(attribute), slot)
            for attribute, _, slot in self.fields
        ]

    @property
    def item_getters(self) -> list[Callable[[Any], Any]]:
        return [
            itemgetter(column) if slot.form is None else partial(_stored_field, itemgetter(column), slot)
            for _, column, slot in self.fields
        ]

    def record(self, instance: Any) -> dict[str, Any]:
        """Converts a row to a dict of the columns' values. Raises `UnfitField`."""
        made, column = dict[str, Any](), ""
        try:
            for attribute, column, slot in self.fields:
                value = getattr(instance, attribute)
                made[column] = value if slot.form is None or value is None else slot.stored(value)
        except UnfitField as error:
            raise UnfitField(f"column {column!r}: {error}", null=error.null) from None
        return made

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        for field in self.schema:
            if field.name not in schema.names or not schema.field(field.name).type.equals(field.type):
                raise InvalidJob(
                    f"{where}: the rows have ({described(schema)}), and class {self.name} has column {field.name!r} of "
                    f"type {field.type}: call typed({self.name}) after a step that gives this column, or correct the "
                    "class"
                )


def _runs_code(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return hasattr(kind, "__post_init__") or not getattr(parameters, "init", True)


def _not_stopped(make: Callable[..., Any], *values: Any) -> Any:
    """Replaces a StopIteration, which would end a batch's rows early."""
    try:
        return make(*values)
    except StopIteration as error:
        raise UnfitField("the constructor raised StopIteration: give next() a default, as in next(it, None)") from error


def _by_keywords(kind: type, names: Sequence[str], *values: Any) -> Any:
    return kind(**dict(zip(names, values, strict=True)))


def _stored_field(get: Callable[[Any], Any], slot: ValuePlace, instance: Any) -> Any:
    value = get(instance)
    return None if value is None else slot.stored(value)


def is_row_class(given: object) -> TypeGuard[type]:
    """Returns True for a dataclass or `msgspec.Struct` class; other classes give schemas only."""
    return isinstance(given, type) and (dataclasses.is_dataclass(given) or hasattr(given, "__struct_fields__"))


def is_instance(value: object) -> bool:
    return is_row_class(type(value))


def row_class(given: Any, where: str) -> RowClass | None:
    """The row class of a user's `schema`; None for a schema of another form. Raises `InvalidJob`."""
    return _row_class(given, where, as_schema(given, where)) if is_row_class(given) else None


def record_of(row: Any, where: str) -> Any:
    rows = row_class(type(row), where)
    return row if rows is None else rows.record(row)


def _row_class(kind: type, where: str, schema: pa.Schema) -> RowClass:
    fields = []
    for attribute, hint in hints_of(kind).items():
        slot = _slot(hint, f"{kind.__name__}.{attribute}", where)
        fields.append(ClassField(attribute, column_name(kind, attribute), slot))
    given = inspect.signature(kind).parameters
    attributes = [field.attribute for field in fields]
    for name in attributes:
        if name not in given:
            raise InvalidJob(
                f"{where}: {kind.__name__}(…) does not take the field {name!r}: rows are made by the constructor, so "
                "let it take every field, or make this one a property"
            )
    for name, parameter in given.items():
        if name not in attributes and parameter.default is inspect.Parameter.empty:
            raise InvalidJob(
                f"{where}: {kind.__name__}(…) needs {name!r}, which is no field: rows are made by the constructor, so "
                "let it need nothing but fields"
            )
    plain = all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in given.values())
    return RowClass(kind, tuple(fields), schema, plain and list(given)[: len(fields)] == attributes)


_MAKERS: dict[Any, Any] = {list: list, set: set, frozenset: frozenset, tuple: tuple}


def _slot(hint: Any, said: str, where: str) -> ValuePlace:
    if typing.get_origin(hint) is typing.Annotated:
        return _slot(typing.get_args(hint)[0], said, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (each for each in arguments if each is not type(None))
        return _slot(inner, said, where)._replace(optional=True)
    form: Form | None = None
    if origin in _MAKERS:
        form = ListForm(_slot(arguments[0], f"an element of {said}", where), _MAKERS[origin])
    elif origin is dict:
        key, item = arguments
        form = MapForm(_slot(key, f"a key of {said}", where), _slot(item, f"a value of {said}", where))
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        form = EnumForm(hint)
    elif is_row_class(hint):
        form = ClassForm(_row_class(hint, where, as_schema(hint, where)))
    elif isinstance(hint, type) and fields_of_class(hint):
        raise InvalidJob(
            f"{where}: {said} is of the class {hint.__name__}: inside a class of rows use a dataclass or a "
            "msgspec.Struct"
        )
    return ValuePlace(said, False, form)
