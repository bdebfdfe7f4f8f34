"""Public reports about values: payloads, change events, functions, paths, as small programs with the right answer."""

import base64
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.kafka.source.decoders import format_of, make_decoder
from barrier_runtime.connectors.source_bases.payloads import JsonPayloads, decoded
from tests.field.jobs import REFUSED, ran, read_file

WHERE = "source 'in'"


def changes(columns: pa.Schema, *events: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows of Debezium's events, and the reasons for refused events."""
    decoder = make_decoder(format_of("value", "json", columns, WHERE, "changes", "null"), WHERE)
    payloads = [json.dumps(event).encode() for event in events]
    arrays, bad = decoded(decoder, payloads, [None] * len(payloads))
    return pa.RecordBatch.from_arrays(arrays, schema=decoder.schema).to_pylist(), bad


# Source: risingwavelabs/risingwave#9813
def test_a_number_with_a_scale_of_its_own_is_read_exactly() -> None:
    columns = pa.schema([("price", pa.decimal128(10, 2))])
    prices = [Decimal("10.50"), Decimal("18.5"), Decimal("-20"), Decimal("12E2")]
    events = []
    for price in prices:
        sign, digits, exponent = price.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        value = base64.b64encode(unscaled.to_bytes(4, "big", signed=True)).decode()
        row = {"price": {"scale": -int(exponent), "value": value}}
        field = {"field": "price", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
        field["fields"] = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]  # type: ignore[assignment]
        both = [{"field": side, "type": "struct", "fields": [field]} for side in ("before", "after")]
        payload = {"op": "c", "before": None, "after": row, "source": {"ts_ms": 1}, "ts_ms": 1}
        events.append({"schema": {"type": "struct", "fields": both}, "payload": payload})
    rows, bad = changes(columns, *events)
    assert bad == {}
    assert [row["after"]["price"] for row in rows] == prices


# Source: confluentinc/kafka-connect-jdbc#1508
def test_a_deletion_is_told_by_the_event_itself_with_or_without_a_tombstone() -> None:
    columns = pa.schema([("id", pa.int64())])
    rows, bad = changes(columns, {"op": "d", "before": {"id": 7}, "after": None, "source": {"ts_ms": 1}})
    assert bad == {}
    assert [(row["op"], row["before"]) for row in rows] == [("d", {"id": 7})]


def payloads(schema: pa.Schema, *texts: str) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows of JSON payloads, and the reasons for refused payloads."""
    decoder = JsonPayloads(schema, WHERE)
    arrays, bad = decoded(decoder, [text.encode("utf-8", "surrogatepass") for text in texts], [None] * len(texts))
    return pa.RecordBatch.from_arrays(arrays, schema=schema).to_pylist(), bad


# Source: msgspec/msgspec#201
@pytest.mark.parametrize("fraction", ["9999999", "999999999", "9999995", "000000001"])
def test_a_fraction_finer_than_the_column_never_moves_a_time(fraction: str) -> None:
    text = f'{{"at": "2024-02-29T23:59:59.{fraction}Z"}}'
    _, bad = payloads(pa.schema([("at", pa.timestamp("us", "UTC"))]), text)
    assert list(bad) == [0]
    decoder = JsonPayloads(pa.schema([("at", pa.timestamp("ns", "UTC"))]), WHERE)
    (column,), bad = decoded(decoder, [text.encode()], [None])
    assert bad == {}
    assert str(column.cast(pa.int64())[0].as_py()).endswith(fraction.ljust(9, "0"))


# Source: msgpack/msgpack-python#591
def test_microseconds_of_a_time_are_exact() -> None:
    texts = [f"2024-04-16T08:43:09.{fraction}Z" for fraction in ("420317", "4", "000001", "999999")]
    rows, bad = payloads(pa.schema([("at", pa.timestamp("us", "UTC"))]), *(json.dumps({"at": each}) for each in texts))
    assert bad == {}
    assert [row["at"].microsecond for row in rows] == [420_317, 400_000, 1, 999_999]


# Source: SymbolixAU/jsonify#81, edgexfoundry/device-sdk-c#150
def test_a_whole_number_is_exact_or_refused_for_its_column() -> None:
    numbers = [5_500_000_000, 2**53 + 1, 2**63 - 1, -(2**63)]
    rows, bad = payloads(pa.schema([("x", pa.int64())]), *(f'{{"x": {number}}}' for number in numbers))
    assert (bad, [row["x"] for row in rows]) == ({}, numbers)
    for schema, number in ((pa.int64(), 2**63), (pa.int32(), 5_500_000_000), (pa.uint8(), -1)):
        _, bad = payloads(pa.schema([("x", schema)]), f'{{"x": {number}}}')
        assert list(bad) == [0], number


# Source: google/gson#3113
def test_a_lone_surrogate_in_a_payload_is_a_bad_record() -> None:
    _, bad = payloads(pa.schema([("x", pa.string())]), '{"x": "\\ud800"}', '{"x": "\\udc00x"}')
    assert sorted(bad) == [0, 1]


# Source: apache/arrow#37496
def test_a_dict_where_a_list_is_wanted_is_refused() -> None:
    with pytest.raises(REFUSED, match="tags"):
        ran([{"tags": {"a": 1, "b": 2}}], {"tags": list[str]}, lambda stream: stream)


# Source: stratosphere/stratosphere#128, stratosphere/stratosphere#864
def test_a_dict_that_a_function_changes_between_rows_counts_as_it_was() -> None:
    def counted(row: dict[str, Any]) -> Any:
        same = {"n": 0}
        for number in range(row["n"]):
            same["n"] = number
            yield same

    rows = ran([{"n": 3}], {"n": int}, lambda stream: stream.flat_map(counted, schema={"n": int}))
    assert [row["n"] for row in rows] == [0, 1, 2]


# Source: apache/flink#17090
@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_rows_come_from_any_iterable_of_a_function(kind: Any) -> None:
    step = lambda row: kind([{"n": row["n"]}, {"n": -row["n"]}])  # noqa: E731
    rows = ran([{"n": 3}], {"n": int}, lambda stream: stream.flat_map(step, schema={"n": int}))
    assert [row["n"] for row in rows] == [3, -3]


# Source: apache/spark#40561, apache/spark#35521
@pytest.mark.parametrize("pause_ms", [1_700_000, 7_200_000])
def test_an_id_is_dropped_within_the_time_and_passes_after_it(pause_ms: int) -> None:
    rows = [{"id": "a", "at": number * pause_ms} for number in range(6)]
    step = lambda stream: stream.deduplicate("once", "id", within=timedelta(hours=1))  # noqa: E731
    found = [row["at"] for row in ran(rows, {"id": str, "at": int}, step, event_time="at")]
    assert found == ([rows[0]["at"], rows[3]["at"]] if pause_ms < 3_600_000 else [row["at"] for row in rows])


# Source: apache/spark#58029
def test_a_number_that_is_no_time_ends_the_job() -> None:
    rows = [{"x": Decimal(99_999_999_999_999_999_999)}]
    with pytest.raises(REFUSED):
        ran(rows, {"x": "decimal(38, 0)"}, lambda stream: stream.select({"at": "CAST(x AS TIMESTAMP)"}))


# Source: duckdb/duckdb#15916, pola-rs/polars#21762
def test_hidden_files_of_other_writers_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    for hidden in (".a.csv.crc", "_SUCCESS", "_committed_1", "._a.csv", "_tmp.csv"):
        (tmp_path / hidden).write_bytes(b"\x00crc")
    assert read_file("csv", tmp_path) == [{"n": 1}]


# Source: duckdb/duckdb#4699, pola-rs/polars#24608
@pytest.mark.parametrize("name", ["[Avalon]_daily.csv", "a*b.csv", "what?.csv", "strange [ folder/a.csv", "{a,b}.csv"])
def test_a_file_whose_name_has_signs_of_patterns_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("n\n1\n")
    assert read_file("csv", tmp_path / name) == [{"n": 1}]


# Source: pola-rs/polars#9719
@pytest.mark.parametrize(("pattern", "count"), [("t-?.csv", 3), ("t-[01].csv", 2), ("t-[!0]*.csv", 4), ("t-?b.csv", 3)])
def test_every_sign_of_a_pattern_works_without_a_star(tmp_path: Path, pattern: str, count: int) -> None:
    for number in range(3):
        for letter in ("", "b"):
            (tmp_path / f"t-{number}{letter}.csv").write_text("n\n1\n")
    assert len(read_file("csv", tmp_path / pattern)) == count


# Source: duckdb/duckdb#18061
def test_a_folder_named_like_a_file_is_read_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "table.csv" / "k=1").mkdir(parents=True)
    (tmp_path / "table.csv" / "k=1" / "part.csv").write_text("n\n1\n")
    assert read_file("csv", tmp_path / "table.csv") == [{"n": 1, "k": 1}]


# Source: our own trial
@pytest.mark.parametrize(
    ("text", "kind"), [("0xFF", "tinyint"), ("0xFFFFFFFF", "int"), ("0xFFFFFFFFFFFFFFFF", "bigint")]
)
def test_a_cast_makes_no_negative_number_of_a_hexadecimal_text(text: str, kind: str) -> None:
    cast = {"n": f"cast(t as {kind})"}
    assert ran([{"t": "0x7F"}, {"t": "-1"}], {"t": str}, lambda rows: rows.select(cast)) == [{"n": 127}, {"n": -1}]
    with pytest.raises(REFUSED, match=r"not in range|hexadecimal number of 64 bits"):
        ran([{"t": text}], {"t": str}, lambda rows: rows.select(cast))
