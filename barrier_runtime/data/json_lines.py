"""JSON objects, one per line, as columns of declared types. docs/files.md has the form of each type.

If Arrow refuses a block, or if a column is a map, the block is read line by line.

Arrow takes whole numbers beyond 64 bits for floats, and texts like times for timestamps without a zone:
`guessed_exactly` corrects these types.
"""

import re
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.types as types

from barrier_runtime.data.schemas import no_rows, one_array
from barrier_runtime.data.values.json_columns import (
    JsonObject,
    begins_of_lines,
    columns_of_lines,
    from_wire,
    has,
    objects_of_lines,
    wire_type,
)
from barrier_runtime.data.values.text_columns import LineError, column_of_texts, not_utf8_at, type_of_times
from barrier_runtime.state.errors import InvalidJob

_ZONE = r":\d\d.*([zZ]|[+-]\d\d(:?\d\d)?)$"
_WHOLE = re.compile(r"-?\d+")


class _Lost(ValueError):
    def __init__(self, row: int, digits: str) -> None:
        super().__init__(digits)
        self.row = row
        self.digits = digits


def guessed_exactly(data: bytes, schema: pa.Schema) -> pa.Schema:
    """Replaces types that Arrow guessed from `data` by types that keep all values.

    Large whole numbers become unsigned, dates become dates, times with a zone moments in UTC; texts in several forms
    stay text. Raises `LineError` for a number that would lose digits.
    """
    if not any(has(field.type, _is_looked_at) for field in schema):
        return schema
    objects = objects_of_lines(data)
    fields = []
    for field in schema:
        values = [(row, each.get(field.name)) for row, each in enumerate(objects)]
        try:
            fields.append(field.with_type(_exact(values, field.type)))
        except _Lost as lost:
            raise LineError(
                begins_of_lines(data)[lost.row],
                f"column {field.name!r} has the number {lost.digits}, which would lose digits as a float: pass "
                'schema=, with a type such as "decimal(38, 0)"',
            ) from None
    return pa.schema(fields)


def _is_looked_at(kind: pa.DataType) -> bool:
    return bool(types.is_floating(kind) or types.is_timestamp(kind) or types.is_string(kind))


def _exact(values: Sequence[tuple[int, Any]], kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        members = []
        for field in kind:
            inner = [(row, each.get(field.name)) for row, each in values if isinstance(each, JsonObject)]
            members.append(field.with_type(_exact(inner, field.type)))
        return pa.struct(members)
    if types.is_list(kind):
        return pa.list_(_exact([(row, each) for row, many in values for each in many or ()], kind.value_type))
    if types.is_timestamp(kind):
        return type_of_times({each for _, each in values if each is not None}) or pa.string()
    if types.is_string(kind):  # Arrow takes times with a fraction for text
        texts = {each for _, each in values if each is not None}
        return (type_of_times(texts) if texts else None) or kind
    if types.is_floating(kind):
        numbers = [(row, each) for row, each in values if each is not None]
        if all(_WHOLE.fullmatch(each) and 0 <= int(each) < 2**64 for _, each in numbers):
            return pa.uint64()
        for row, each in numbers:
            if _WHOLE.fullmatch(each) and Decimal(each) != Decimal(repr(float(each))):
                raise _Lost(row, each)
    return kind


def unknown_field(objects: Sequence[Any], kind: pa.Schema | pa.DataType) -> str | None:
    """First field of the objects that `kind` lacks, such as `item.price`."""
    for each in objects:
        if isinstance(each, JsonObject):
            names = {field.name: field.type for field in kind}
            for name, value in each.items():
                if name not in names:
                    return name
                inner = _unknown_within(value, names[name])
                if inner is not None:
                    return f"{name}.{inner}"
    return None


def _unknown_within(value: Any, kind: pa.DataType) -> str | None:
    if types.is_struct(kind):
        return unknown_field([value], kind)
    if types.is_list(kind) and isinstance(value, list):
        return next((found for each in value if (found := _unknown_within(each, kind.value_type))), None)
    if types.is_map(kind) and isinstance(value, JsonObject):
        inner = ((name, _unknown_within(each, kind.item_type)) for name, each in value.items())
        return next((f"{name}.{found}" for name, found in inner if found), None)
    return None


def has_other_zones(texts: pa.Array, kind: pa.DataType) -> bool:
    if types.is_struct(kind):
        return any(has_other_zones(each, field.type) for each, field in zip(texts.flatten(), kind, strict=True))
    if types.is_list(kind):
        return has_other_zones(texts.flatten(), kind.value_type)
    if not types.is_timestamp(kind):
        return False
    zoned = pc.match_substring_regex(texts, _ZONE)
    return bool(pc.any(zoned if kind.tz is None else pc.invert(zoned)).as_py())


def refuse_other_zones(data: bytes, schema: pa.Schema) -> None:
    """Raises `LineError` for a time with a zone in a guessed column without, or vice versa."""
    for row, each in enumerate(objects_of_lines(data)):
        for field in schema:
            text = _other_zone(each.get(field.name), field.type)
            if text is not None:
                has, without = ("has no zone", "with") if _has_zone(field.type) else ("has a zone", "without")
                raise LineError(
                    begins_of_lines(data)[row],
                    f"column {field.name!r} is {field.type}, and {text!r} {has}; the type was guessed from the first "
                    f"rows, whose times are {without} one: declare the column in schema=, as "
                    '"timestamp[us, tz=UTC]" (without a zone: in UTC) or "string"; or that column alone in types=',
                )


def _has_zone(kind: pa.DataType) -> bool:
    return has(kind, lambda each: types.is_timestamp(each) and each.tz is not None)


def _other_zone(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, JsonObject) and types.is_struct(kind):
        found = (_other_zone(value.get(field.name), field.type) for field in kind)
    elif isinstance(value, list) and types.is_list(kind):
        found = (_other_zone(each, kind.value_type) for each in value)
    else:
        is_time = types.is_timestamp(kind) and isinstance(value, str)
        return value if is_time and (re.search(_ZONE, value) is None) == (kind.tz is not None) else None
    return next((text for text in found if text is not None), None)


_CHANGED = re.compile(r"Column\(/?(.*?)\) changed from (\w+) to (\w+) in row (\d+)")
_NO_NUMBER = re.compile(rb'([:\[,]\s*)"(NaN|-?Infinity)"(?=\s*[,}\]])')
_NULL_ROW = re.compile(rb"\}\s*null")  # Arrow makes a row of such a line


def json_parser(
    where: str,
    schema: pa.Schema,
    left_out: Callable[[str, int], None] | None = None,
    declared: Collection[str] = (),
    inside: "KeysInside | None" = None,
) -> Callable[[bytes], pa.RecordBatch]:
    """Returns a function from whole lines to rows, which raises `LineError` for unfit lines.

    Fields that `schema` lacks are omitted, absent fields are null. `left_out` gets the first omitted field and the byte
    where that line begins: of guessed types, except those of the `declared` columns, or the first key found `inside`.
    """
    for field in schema:
        if wire_type(field.type) is None:
            raise InvalidJob(
                f"{where}: column {field.name!r} is declared as {field.type}, which is not read from JSON: declare "
                "another type, or read text and parse that in map()"
            )
    return _Parser(schema, left_out, declared, inside)


_SAMPLED = 8  # lines of a block


class KeysInside:
    """Search for keys of nested objects that a declared schema lacks.

    Arrow finds the keys in blocks whose other fields are all declared. Else the first lines of each block are searched.
    """

    samples = False

    def found(self, data: bytes, schema: pa.Schema) -> tuple[str, int] | None:
        """First such key, such as `item.price`, and the byte where its line begins."""
        if self.samples:
            data = b"\n".join(data.split(b"\n", _SAMPLED)[:_SAMPLED])
        try:
            objects = objects_of_lines(data)
        except LineError:  # Arrow may read the line, otherwise the parser raises this error
            return None
        for row, each in enumerate(objects):
            for field in schema:
                key = _unknown_within(each.get(field.name), field.type)
                if key is not None:
                    return f"{field.name}.{key}", begins_of_lines(data)[row]
        return None


def _refuse_other_bytes(data: bytes) -> None:
    bad = None if data.isascii() else not_utf8_at(data)
    if bad is not None:
        raise LineError(bad, f"0x{data[bad]:02x} is not UTF-8: convert the file (iconv -f LATIN1 -t UTF-8)")


def _begins_with_null(data: bytes) -> bool:
    """Arrow crashes by a segmentation fault at such lines."""
    return data.lstrip()[:4] == b"null"


class _Parser:
    def __init__(
        self,
        schema: pa.Schema,
        left_out: Callable[[str, int], None] | None,
        declared: Collection[str],
        inside: KeysInside | None,
    ) -> None:
        self._schema = schema
        self._left_out = left_out
        self._inside = inside if any(has(field.type, types.is_struct) for field in schema) else None
        guesses = left_out is not None and inside is None
        self._guessed = pa.schema([field for field in schema if guesses and field.name not in declared])
        self._guessed_names = frozenset(self._guessed.names)
        searches = self._inside is not None and not self._inside.samples
        self._unexpected = "error" if guesses or searches else "ignore"
        self._empty = no_rows(schema)
        self._by_lines = any(has(field.type, types.is_map) for field in schema)
        self._has_times = any(has(field.type, types.is_timestamp) for field in schema)
        self._has_floats = any(has(field.type, types.is_floating) for field in schema)
        self._guesses_times = any(has(field.type, types.is_timestamp) for field in self._guessed)
        self._times_as_text = self._guesses_times  # Arrow does not distinguish times with and without a zone
        self._options = None if self._by_lines else self._options_of()
        if self._by_lines and self._inside is not None:
            self._inside.samples = True

    def _options_of(self) -> pajson.ParseOptions:
        fields = [field.with_type(wire_type(field.type, times_as_text=self._times_as_text)) for field in self._schema]
        return pajson.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior=self._unexpected)

    def __call__(self, data: bytes) -> pa.RecordBatch:
        _refuse_other_bytes(data)
        if data[:1].isspace() and not data.strip():
            return self._empty
        if self._inside is not None and self._inside.samples:
            self._tells_key_inside(self._inside, data)
        if self._options is None or _begins_with_null(data):
            return self._by_line(data)
        try:
            return self._rows(data, self._options)
        except ValueError:
            if self._unexpected == "error" and self._tells_unknown_field(data):
                self._unexpected, self._options = "ignore", self._options_of()
                return self(data)
            if not self._has_times or self._times_as_text:
                return self._by_line(data)
        self._times_as_text = True  # zeros below the unit, which other blocks have, too
        options = self._options_of()
        try:
            rows = self._rows(data, options)
        except ValueError:
            self._times_as_text = False
            return self._by_line(data)
        self._options = options
        return rows

    def _by_line(self, data: bytes) -> pa.RecordBatch:
        if self._guesses_times:
            refuse_other_zones(data, self._guessed)
        return columns_of_lines(data, self._schema)

    def _tells_key_inside(self, inside: KeysInside, data: bytes) -> bool:
        found = inside.found(data, self._schema)
        if found is not None and self._left_out is not None:
            self._inside = None
            self._left_out(*found)
        return found is not None

    def _tells_unknown_field(self, data: bytes) -> bool:
        if self._inside is not None:
            if self._tells_key_inside(self._inside, data):
                return True
            self._inside.samples = unknown_field(objects_of_lines(data), self._schema) is not None
            return self._inside.samples
        for row, each in enumerate(objects_of_lines(data)):
            found = unknown_field([each], self._schema)
            if found is not None and self._left_out is not None:
                self._left_out(found, begins_of_lines(data)[row])
                return True
        return False

    def _rows(self, data: bytes, options: pajson.ParseOptions) -> pa.RecordBatch:
        """Raises `ValueError`, like Arrow, for a value that Arrow does not read and keep."""
        try:
            table = json_table(data, options)
        except pa.ArrowInvalid:
            changed, count = _NO_NUMBER.subn(rb"\1\2", data) if self._has_floats else (data, 0)
            if not count:
                raise
            table = json_table(changed, options)
        found = [one_array(table[field.name]) for field in self._schema]
        if all(column.null_count for column in found) and _NULL_ROW.search(data) is not None:
            raise ValueError("a line may be null")
        columns = [self._column(column, field) for column, field in zip(found, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, column: pa.Array, field: pa.Field) -> pa.Array:
        kind = field.type
        if self._guesses_times and field.name in self._guessed_names:
            if types.is_timestamp(kind):
                return column_of_texts(column, kind, trims=False)
            if has_other_zones(column, kind):
                raise ValueError("times with and without a zone")
        return from_wire(column, kind)


def json_table(data: bytes, options: pajson.ParseOptions | None = None) -> pa.Table:
    return pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=options or pajson.ParseOptions(),
    )


def guessed_schema(data: bytes, declared: pa.Schema) -> pa.Schema:
    """Types that some lines suggest, or their `declared` types. Raises `LineError`."""
    _refuse_other_bytes(data)
    if _begins_with_null(data) or _NULL_ROW.search(data) is not None:
        columns_of_lines(data, pa.schema([]))
    try:
        schema = _arrows_guess(data, declared)
    except pa.ArrowInvalid as error:
        changed = _CHANGED.search(str(error))
        if changed is not None:
            column, before, after, row = changed.groups()
            raise LineError(
                begins_of_lines(data)[int(row)],
                f"column {column!r} is a {before} at first and a {after} here: make it one type in the file, or pass "
                f"types={{{column!r}: …}} or schema=",
            ) from error
        columns_of_lines(data, pa.schema([]))
        raise LineError(0, f"it is not one JSON object per line: {error}. Correct the file") from error
    known = set(schema.names) & set(declared.names)
    guessed = guessed_exactly(data, pa.schema([field for field in schema if field.name not in known]))
    return pa.schema([(declared if name in known else guessed).field(name) for name in schema.names])


def _arrows_guess(data: bytes, declared: pa.Schema) -> pa.Schema:
    try:
        return json_table(data).schema
    except pa.ArrowInvalid:
        if not len(declared):
            raise
    plain = [field for field in declared if not has(field.type, types.is_map)]
    wires = [field.with_type(wire_type(field.type, times_as_text=True)) for field in plain]
    return json_table(data, pajson.ParseOptions(explicit_schema=pa.schema(wires))).schema
