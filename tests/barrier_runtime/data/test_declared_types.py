"""Types as users write them: every printed type is accepted; names of SQL; Python's types and classes."""

import dataclasses
import datetime
import decimal
import typing

import msgspec
import pyarrow as pa
import pydantic
import pytest

from barrier_runtime.data.schemas import as_schema, declared_type, require_columns
from barrier_runtime.state.errors import InvalidJob

PRINTED = [
    *(pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
    *(pa.timestamp("ms"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.date32(), pa.date64()),
    *(pa.time64("us"), pa.duration("ns"), pa.decimal128(10, 2), pa.decimal256(50, 3), pa.binary(16)),
    *(pa.list_(pa.int64()), pa.large_list(pa.string()), pa.list_(pa.list_(pa.timestamp("us", "UTC")))),
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.decimal128(5, 1)))]),
    pa.map_(pa.string(), pa.struct([("x", pa.float64())])),
]


@pytest.mark.parametrize("kind", PRINTED, ids=str)
def test_what_is_printed_as_a_type_is_accepted_as_one(kind: pa.DataType) -> None:
    assert declared_type(str(kind), "c", "here").equals(kind)


def test_a_text_as_in_sql_is_a_schema() -> None:
    text = (
        "id BIGINT NOT NULL, name VARCHAR(20), price DECIMAL(10, 2), at TIMESTAMP, ids ARRAY<INT>, ok BOOLEAN, r REAL"
    )
    assert as_schema(text, "here") == pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("ids", pa.list_(pa.int32())),
            ("ok", pa.bool_()),
            ("r", pa.float32()),
        ]
    )


@dataclasses.dataclass
class Item:
    sku: str
    pieces: int


@dataclasses.dataclass
class Order:
    id: int
    at: datetime.datetime
    items: list[Item]
    price: decimal.Decimal | None = None
    tags: typing.ClassVar[list[str]] = []


class Reading(msgspec.Struct):
    sensor: str
    ms: float


class Typed(typing.TypedDict):
    sensor: str
    seen: dict[str, int]


def test_a_class_with_fields_is_a_schema() -> None:
    item = pa.struct([("sku", pa.string()), ("pieces", pa.int64())])
    assert as_schema(Order, "here") == pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("items", pa.list_(item)),
            ("price", pa.decimal128(38, 18)),
        ]
    )
    assert as_schema(Reading, "here").names == ["sensor", "ms"]
    assert as_schema(Typed, "here").field("seen").type == pa.map_(pa.string(), pa.int64())


def test_a_pydantic_model_is_a_schema() -> None:
    model = pydantic.create_model("Model", id=(int, ...), name=(typing.Optional[str], None))  # noqa: UP045
    assert as_schema(model, "here") == pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    "kind", ["strng", "decimal(99, 2)", "list<strng>", "struct<>", "map<string>", "timestamp[m]", ""]
)
def test_an_unknown_name_is_told_with_what_there_is(kind: str) -> None:
    with pytest.raises(InvalidJob, match=r"column 'c' has the unknown type name .*timestamp\[ms, tz=UTC\]"):
        declared_type(kind, "c", "here")


@pytest.mark.parametrize("kind", [object, int | str, 5, None])
def test_what_is_no_type_is_told(kind: object) -> None:
    with pytest.raises(InvalidJob, match="which is not an Arrow type"):
        declared_type(kind, "c", "here")


@pytest.mark.parametrize("text", ["id", "id BIGINT, name"])
def test_a_column_without_a_type_is_told(text: str) -> None:
    with pytest.raises(InvalidJob, match="write a name and a type"):
        as_schema(text, "here")


def test_a_column_that_is_nearly_right_is_recognised() -> None:
    schema = pa.schema([("sensor", pa.string()), ("ms", pa.float64())])
    with pytest.raises(InvalidJob, match=r"no column 'sensr' \(did you mean 'sensor'\?\): use one of sensor, ms"):
        require_columns(schema, ("sensr",), "key_by('sensr')")
