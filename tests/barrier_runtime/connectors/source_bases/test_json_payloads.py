"""JSON payloads as columns: sink output is read back equal, and no digit is lost silently."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.source_bases.payloads import Decoder, JsonPayloads, decoded
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows, layout_of
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.connectors.round_trips import KINDS, Kind, assert_same, column_of
from tests.drawn import examples


def _is_read(kind: Kind) -> bool:
    try:
        JsonPayloads(pa.schema([("x", kind.type)]), "source 'in'")
    except InvalidJob:
        return False
    return True


READ = [kind for kind in KINDS if _is_read(kind)]


def _read(payloads: list[bytes], kind: pa.DataType) -> pa.Array:
    """Returns column `x` of these payloads in Arrow, equal to the column of small batches as lists."""
    schema = pa.schema([("x", kind)])
    decoder = JsonPayloads(schema, "source 'in'")
    columns, bad = decoded(decoder, payloads, payloads)
    assert bad == {}
    if layout_of(schema) is not None:
        for start in range(0, len(payloads), MOST_ROWS):
            few = payloads[start : start + MOST_ROWS]
            rows = FewRows.of_values(schema, decoder.values(decoder.rows(few, few))).record_batch()
            assert_same(rows.column(0), columns[0].slice(start, len(few)))
    return columns[0]


def _bad(payload: bytes, kind: pa.DataType) -> str:
    decoder = JsonPayloads(pa.schema([("x", kind)]), "source 'in'")
    _, bad = decoded(decoder, [b"{}", payload], [None, None])
    assert list(bad) == [1]
    return bad[1]


def _round_trip(column: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([column], ["x"])
    assert_same(_read(encoders.jsonl([batch]).split(b"\n")[:-1], column.type), column)


@pytest.mark.parametrize("kind", READ, ids=str)
def test_special_values_of_a_json_sink_are_read_back_equal(kind: Kind) -> None:
    _round_trip(kind.special())


@examples(150)
@given(st.sampled_from(READ).flatmap(column_of))
def test_drawn_values_of_a_json_sink_are_read_back_equal(column: pa.Array) -> None:
    _round_trip(column)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.float64(), '"NaN"', "nan"),
        (pa.float32(), '"-Infinity"', "-inf"),
        (pa.float64(), '"Infinity"', "inf"),
        (pa.float64(), "-0.0", "-0.0"),
        (pa.float64(), "9007199254740992", "9007199254740992.0"),
        (pa.float64(), "100000000000000000000", "1e+20"),
        (pa.list_(pa.float64()), '["NaN", 1, null]', "[nan, 1.0, None]"),
        (pa.map_(pa.string(), pa.float32()), '{"a": "NaN"}', "[('a', nan)]"),
        (pa.decimal128(38, 20), "1234567890.12345678901234567890", "Decimal('1234567890.12345678901234567890')"),
        (pa.decimal128(10, 2), '"1.50"', "Decimal('1.50')"),
        (pa.timestamp("us"), '"2024-02-29T23:59:59.1234560Z"', "datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)"),
        (pa.list_(pa.time32("s")), '["12:00:00.000"]', "[datetime.time(12, 0)]"),
    ],
)  # fmt: skip
def test_a_value_of_json_is_kept(kind: pa.DataType, text: str, expected: str) -> None:
    assert repr(_read([b'{"x": ' + text.encode() + b"}"], kind)[0].as_py()) == expected


def test_nine_digits_of_a_second_are_kept_where_the_column_has_them() -> None:
    column = _read([b'{"x": "2024-02-29T23:59:59.123456789Z"}'], pa.timestamp("ns", "UTC"))
    assert column.cast(pa.int64()).to_pylist() == [1_709_251_199_123_456_789]


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (pa.timestamp("us", "UTC"), '"2024-02-29T23:59:59.9999999Z"', "declare the column as timestamp[ns, tz=UTC]"),
        (pa.list_(pa.timestamp("us")), '["2024-02-29T23:59:59.999999999Z"]', "declare the column as timestamp[ns]"),
        (pa.struct([("t", pa.time64("us"))]), '{"t": "12:00:00.1234567"}', "declare the column as time64[ns]"),
        (pa.duration("us"), '"PT1.1234567S"', "declare the column as duration[ns]"),
        (pa.timestamp("us"), '"2024-02-29"', "is no time"),
        (pa.timestamp("us"), "1709251199", "Expected `str"),
        (pa.int64(), "19.99", "Expected `int"),
        (pa.int64(), "true", "Expected `int"),
        (pa.int64(), "9223372036854775808", "Expected `int`"),
        (pa.uint64(), "18446744073709551616", "18446744073709551615"),
        (pa.float64(), "12345678901234567891", "digits would be lost"),
        (pa.float32(), "1e300", "would become infinite"),
        (pa.float64(), "1e400", "out of range"),
        (pa.float64(), '"nan"', "but there is 'nan' (str)"),
        (pa.decimal128(10, 2), "1.005", "2 digits behind the point"),
        (pa.decimal128(10, 2), '"NaN"', "but there is Decimal('NaN')"),
        (pa.string(), '"caf\xe9"', "utf-8"),
        (pa.string(), r'"\ud800"', "DecodeError"),
        (pa.binary(), '"YQ"', "base64"),
        (pa.binary(2), '"YQ=="', "2"),
        (pa.date32(), '"2024-01-01T00:00:00Z"', "date"),
    ],
)  # fmt: skip
def test_a_value_of_json_that_would_change_is_named(kind: pa.DataType, text: str, why: str) -> None:
    told = _bad(b'{"x": ' + text.encode("latin-1") + b"}", kind)
    assert why in told


# ---------------------------------------------------------------- wide rows

_NUMBERS = (pa.int64(), pa.float64(), pa.int8(), pa.uint64(), pa.uint16(), pa.int32())
_WIDE = pa.schema(
    [
        *((f"n{at}", _NUMBERS[at % len(_NUMBERS)]) for at in range(30)),
        ("text", pa.string()),
        ("list", pa.list_(pa.float64())),
        ("narrow", pa.float32()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us")),
    ]
)
_NUMBER = st.one_of(
    st.integers(0, 100),
    st.sampled_from([-1, 2**53 + 1, 2**53, 2**63, 2**64 - 1, 10**400, -129, 127, 65_536, 1.5, 1e22, -0.0]),
    st.sampled_from([None, None, "NaN", "-Infinity", "x", True, [1]]),
)
_ODD = st.dictionaries(st.sampled_from([f"n{at}" for at in range(30)]), _NUMBER, max_size=4)
_OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "text": st.one_of(st.none(), st.text(max_size=5), st.just("\ud800")),
        "list": st.lists(st.sampled_from([1, 2.5, None, "NaN"]), max_size=3),
        "narrow": st.sampled_from([1, 0.1, 1e300, "Infinity"]),
        "flag": st.sampled_from([True, None, 1]),
        "at": st.sampled_from(["2024-02-29T23:59:59.123456Z", "yesterday", None]),
    },
)
_PAYLOAD = st.one_of(
    st.builds(lambda odd, others: json.dumps({**odd, **others}).encode(), _ODD, _OTHERS),
    st.sampled_from([None, b"", b"null", b"[]", b"{", b'{"n0":1}{"n0":2}', b'{"n0":1,"n0":2}']),
)


class _ByColumn(JsonPayloads):
    def arrays(self, payloads: Sequence[bytes | None], records: Sequence[Any]) -> list[pa.Array]:
        return Decoder.arrays(self, payloads, records)


@examples(300)
@given(st.lists(_PAYLOAD, min_size=1, max_size=12), st.booleans())
def test_wide_rows_have_the_values_and_errors_of_single_columns(payloads: list[Any], nullable: bool) -> None:
    schema = _WIDE if nullable else _WIDE.set(0, _WIDE.field(0).with_nullable(False))
    found, bad = decoded(JsonPayloads(schema, "source 'in'"), payloads, payloads)
    expected, also_bad = decoded(_ByColumn(schema, "source 'in'"), payloads, payloads)
    assert bad == also_bad
    for one, other in zip(found, expected, strict=True):
        one.validate(full=True)
        assert_same(one, other)


class _Counted(list[bytes]):
    """Payloads that count how often they are decoded."""

    passes = 0

    def __iter__(self) -> Iterator[bytes]:
        type(self).passes += 1
        return super().__iter__()


def test_numbers_that_cannot_be_packed_are_seldom_decoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = JsonPayloads(_WIDE, "source 'in'")
    monkeypatch.setattr(_Counted, "passes", 0)
    for _ in range(100):
        columns = decoder.arrays(_Counted([b'{"n1":"NaN","n2":7}']), [None])
        assert str(columns[1][0]) == "nan"
        assert columns[2][0].as_py() == 7
    assert _Counted.passes < 110


@pytest.mark.parametrize("kind", READ, ids=str)
def test_special_values_in_wide_rows_are_read_back_equal(kind: Kind) -> None:
    names = [f"c{at}" for at in range(20)]
    batch = pa.RecordBatch.from_arrays([kind.special()] * len(names), names)
    payloads = encoders.jsonl([batch]).split(b"\n")[:-1]
    for column in JsonPayloads(batch.schema, "source 'in'").arrays(payloads, payloads):
        assert_same(column, kind.special())


def test_negative_zero_needs_a_point_or_an_exponent() -> None:
    payloads = [b'{"x": %s}' % each for each in (b"-0.0", b"-0e0", b"-0", b"0")]
    assert [str(each) for each in _read(payloads, pa.float64()).to_pylist()] == ["-0.0", "-0.0", "0.0", "0.0"]
