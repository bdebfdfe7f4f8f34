"""Change events as Debezium's connectors write them: placeholders, numbers, times and types that change."""

import base64
import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.kafka.source.decoders import format_of, make_decoder
from barrier_runtime.connectors.source_bases.payloads import decoded
from barrier_runtime.data.schemas import declared_type

WHERE = "source 'changes'"
MARK = "__debezium_unavailable_value"
MARK_BASE64 = base64.b64encode(MARK.encode()).decode()
TIME, KAFKA = "io.debezium.time.", "org.apache.kafka.connect.data."
LONG = b'{"op":"c","after":{"v":12345678901234567.89}}'
SCALED = {"type": "bytes", "name": f"{KAFKA}Decimal", "parameters": {"scale": "2"}}
WHOLE = {"type": "bytes", "name": f"{KAFKA}Decimal", "parameters": {"scale": "0"}}
VARIABLE = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}


def read(value: Any, kind: Any, told: dict[str, Any] | None = None, **options: Any) -> Any:
    """The decoded value of the column `v`; the error text of a refused event; "unchanged"."""
    event: Any = {"op": "u", "before": None, "after": {"id": 1, "v": value}, "source": {"ts_ms": 5}}
    if told is not None:
        fields = [{"field": "id", "type": "int64"}, {"field": "v", **told}]
        event = {"schema": {"fields": [{"field": "after", "fields": fields}]}, "payload": event}
    schema = pa.schema([("id", pa.int64()), ("v", declared_type(kind, "v", WHERE))])
    decoder = make_decoder(format_of("value", "json", schema, WHERE, "changes", "null", **options), WHERE)
    text = json.dumps(event).encode() if not isinstance(value, bytes) else value
    columns, bad = decoded(decoder, [text], [None])
    if bad:
        return bad[0]
    row = dict(zip(decoder.schema.names, (column[0].as_py() for column in columns), strict=True))
    return "unchanged" if row["unchanged"] == ["v"] and row["after"]["v"] is None else row["after"]["v"]


# Source: our own trial
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (MARK, str),
        (MARK_BASE64, bytes),
        (MARK.encode().hex(), str),
        ([MARK], "list<string>"),
        ([[MARK]], "list<list<string>>"),
        ([MARK_BASE64], "list<binary>"),
        (list(MARK.encode()), "list<int32>"),
        ([float(each) for each in MARK.encode()], "list<double>"),
        ({MARK: MARK}, "map<string, string>"),
        ({MARK: None}, "map<string, string>"),
        (json.dumps({MARK: MARK}, separators=(",", ":")), str),
        ({"wkb": MARK_BASE64, "srid": 4326}, "struct<wkb: binary, srid: int32>"),
        (["a11e2b4e-0d5f-3b1e-9a4e-000000000000", MARK], "list<string>"),
    ],
)
def test_the_placeholder_of_a_large_value_is_known_at_every_level(value: Any, kind: Any) -> None:
    assert read(value, kind) == "unchanged"


# Source: our own trial
def test_a_configured_placeholder_is_known_and_the_default_is_a_value_then() -> None:
    assert read("n/a", str, placeholder="n/a") == "unchanged"
    assert read(["n/a"], "list<string>", placeholder="n/a") == "unchanged"
    assert read(MARK, str, placeholder="n/a") == MARK
    assert read("\x00\x01", str, placeholder="hex:0001") == "unchanged"
    assert read("a text about __debezium_unavailable_value", str) == "a text about __debezium_unavailable_value"


# Source: our own trial
@pytest.mark.parametrize(
    ("value", "kind", "told", "result"),
    [
        (19.99, int, None, "refused"),
        (19.0, int, None, 19),
        (19, int, {"type": "int32"}, 19),
        (2**63, int, None, "refused"),
        (9007199254740993.5, "int32", None, "refused"),
        ("19", int, {"type": "string"}, "refused"),
        ("B88=", int, SCALED, "refused"),  # 19.99
        ("BzA=", int, SCALED, "refused"),  # 18.40
        ("Ew==", int, WHOLE, 19),
        (19.99, "decimal(10, 2)", None, decimal.Decimal("19.99")),
        (19.999, "decimal(10, 2)", None, "refused"),
        ("19.99", "decimal(10, 2)", {"type": "string"}, decimal.Decimal("19.99")),
        ("1_9", "decimal(10, 2)", None, "refused"),
        ("NaN", "decimal(10, 2)", None, "refused"),
        (LONG, "decimal(20, 2)", None, decimal.Decimal("12345678901234567.89")),
        (b'{"op":"c","after":{"v":9007199254740993.0}}', int, None, 9007199254740993),
        (b'{"op":"c","after":{"v":1e400}}', float, None, "refused"),
        ({"scale": 1, "value": "AMU="}, "decimal(10, 2)", VARIABLE, decimal.Decimal("19.7")),
        ("NaN", float, {"type": "double"}, "nan"),
        ("-Infinity", float, {"type": "double"}, float("-inf")),
        (1e300, "float32", None, "refused"),
        ("B88=", float, SCALED, "refused"),
        ("B88=", str, SCALED, "refused"),
        ("B88=", str, {"type": "bytes"}, "refused"),
        (5, str, {"type": "int32"}, "refused"),
        (1, bool, {"type": "int16"}, "refused"),
        ("AP8=", bytes, {"type": "bytes"}, b"\x00\xff"),
        ("00ff", bytes, {"type": "string"}, "refused"),
        ("AP8=", "fixed_size_binary[3]", {"type": "bytes"}, "refused"),
        (["B88="], "list<decimal(10, 2)>", {"type": "array", "items": SCALED}, [decimal.Decimal("19.99")]),
        ({"a": 1.5}, "map<string, int>", None, "refused"),
    ],
)  # fmt: skip
def test_a_number_or_bytes_are_kept_or_refused(value: Any, kind: Any, told: Any, result: Any) -> None:
    _check(read(value, kind, told), result)


def _check(found: Any, result: Any) -> None:
    if result == "refused":
        assert isinstance(found, str)
        assert "'v'" in found, f"{found!r} does not name the column"
    else:
        assert (str(found) if result == "nan" else found) == result


DAY, NOON = datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 12)


# Source: our own trial
@pytest.mark.parametrize(
    ("value", "kind", "name", "result"),
    [
        (19723, "date32", f"{TIME}Date", DAY),
        (19723, "date32", f"{KAFKA}Date", DAY),
        (19723, "date32", "", DAY),
        ("2024-01-01Z", "date32", f"{TIME}IsoDate", DAY),
        (2932896, "date32", f"{TIME}Date", datetime.date.max),
        (-719162, "date32", "", datetime.date.min),
        (2932897, "date32", f"{TIME}Date", "refused"),
        (-719163, "date32", "", "refused"),
        (169560311, "date32", f"{TIME}Date", "refused"),
        ("10000-01-01Z", "date32", f"{TIME}IsoDate", "refused"),
        ("0000-12-31", "date64", "", "refused"),
        (9223372036825200000, "timestamp[us]", f"{TIME}MicroTimestamp", "refused"),
        (-9223372036832400000, "timestamp[us]", "", "refused"),
        (9223372036825200000, "timestamp[ms]", f"{TIME}Timestamp", "refused"),
        (1704110400000, "date32", f"{TIME}Timestamp", "refused"),
        (19723, int, f"{TIME}Date", "refused"),
        (1704110400000, "timestamp[us]", f"{TIME}Timestamp", NOON),
        (1704110400000, "timestamp[us]", f"{KAFKA}Timestamp", NOON),
        (1704110400000000, "timestamp[ms]", f"{TIME}MicroTimestamp", NOON),
        (1704110400000001, "timestamp[ms]", f"{TIME}MicroTimestamp", "refused"),
        (1704110400000000000, "timestamp[us]", f"{TIME}NanoTimestamp", NOON),
        (1704110400000000001, "timestamp[us]", f"{TIME}NanoTimestamp", "refused"),
        (1704110400000000, int, f"{TIME}MicroTimestamp", "refused"),
        (1704110400000, "timestamp[us]", "int64", "refused"),
        (1704110400000000, "timestamp[us]", "", NOON),
        (253402300800000000, "timestamp[ns]", f"{TIME}MicroTimestamp", "refused"),
        (True, "timestamp[us]", "", "refused"),
        (1.5, "timestamp[us]", "", "refused"),
        ("2024-01-01T12:00:00Z", "timestamp[us]", f"{TIME}ZonedTimestamp", NOON),
        ("2024-01-01T14:00:00.0000000+02:00", "timestamp[us]", "", NOON),
        ("2024-02-29T23:59:59.9999999Z", "timestamp[us]", "", "refused"),
        ("2024-02-29T23:59:59.999999999Z", "timestamp[us]", f"{TIME}ZonedTimestamp", "refused"),
        ("2024-01-01T12:00:00.000000001Z", "timestamp[ns]", "", 1704110400000000001),
        (43200000, "time64[us]", f"{TIME}Time", NOON.time()),
        (43200000000, "timestamp[us]", f"{TIME}MicroTime", "refused"),
        (1704110400000000, "time64[us]", f"{TIME}MicroTimestamp", "refused"),
        (90000000, "time64[us]", f"{TIME}MicroDuration", "refused"),
        ("12:00:00Z", "timestamp[us]", f"{TIME}ZonedTime", "refused"),
        ("2024-01-01T12:00:00Z", "date32", f"{TIME}ZonedTimestamp", "refused"),
        (43200000, "time64[us]", f"{KAFKA}Time", NOON.time()),
        (43200000000, "time64[us]", f"{TIME}MicroTime", NOON.time()),
        (43200000000000, "time64[us]", f"{TIME}NanoTime", NOON.time()),
        (43200000000001, "time64[us]", f"{TIME}NanoTime", "refused"),
        (86400000000, "time64[us]", f"{TIME}MicroTime", "refused"),
        ("12:00:00.0000000Z", "time64[us]", f"{TIME}ZonedTime", NOON.time()),
        ("12:00:00.1234567", "time64[us]", "", "refused"),
        ("12:00:00+02:00", "time64[us]", f"{TIME}ZonedTime", "refused"),
        (90000000, "duration[ms]", f"{TIME}MicroDuration", datetime.timedelta(seconds=90)),
        ("P0Y0M1DT0H0M1.5S", "duration[us]", f"{TIME}Interval", datetime.timedelta(days=1, seconds=1.5)),
        ("P1Y0M1DT0H0M0S", "duration[us]", f"{TIME}Interval", "refused"),
        ("P1Y0M1DT0H0M0S", str, f"{TIME}Interval", "P1Y0M1DT0H0M0S"),
        ("24:00:00Z", str, f"{TIME}ZonedTime", "24:00:00Z"),
        ("2024-01-01T14:00:00+02:00", str, f"{TIME}ZonedTimestamp", "2024-01-01T14:00:00+02:00"),
        ([19723], "list<date32>", "", [DAY]),
    ],
)
def test_a_time_is_kept_or_refused(value: Any, kind: Any, name: str, result: Any) -> None:
    told = {"type": "string" if isinstance(value, str) else "int64"} if name else None
    if told and name.count("."):
        told["name"] = name
    found = read(value, kind, told)
    _check(found.value if hasattr(found, "value") else found, result)


# Source: our own trial
@pytest.mark.parametrize(
    ("value", "kind", "told", "doubt"),
    [
        (1704110400000, "timestamp[us]", None, "1704110400000 in column 'v' is taken as us, and looks like ms"),
        (1704110400000000, "timestamp[ns]", None, "is taken as ns, and looks like us"),
        (1704110400000000, "timestamp[us]", None, ""),
        (1704110400000, "timestamp[us]", {"type": "int64", "name": f"{TIME}Timestamp"}, ""),
        ("2024-01-01T12:00:00Z", "timestamp[us]", None, ""),
    ],
)
def test_a_time_that_looks_like_another_unit_is_doubted_in_the_log(
    value: Any, kind: Any, told: Any, doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    read(value, kind, told)
    assert (doubt in caplog.text) if doubt else not caplog.records


def event_rows(event: dict[str, Any], form: Any) -> Any:
    """The row of an event; the error text of a refused event."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    decoder = make_decoder(format_of("value", "json", schema, WHERE, form, "null"), WHERE)
    columns, bad = decoded(decoder, [json.dumps(event).encode()], [None])
    return bad[0] if bad else dict(zip(decoder.schema.names, (each[0].as_py() for each in columns), strict=True))


# Source: our own trial
@pytest.mark.parametrize("source", [None, {}, {"ts_ms": None}, {"ts_ms": 0}])
@pytest.mark.parametrize("form", ["changes", "upsert"])
def test_an_event_without_a_time_is_not_of_1970(form: str, source: Any) -> None:
    event = {"op": "c", "after": {"id": 1, "v": 2}, "source": source}
    assert event_rows(event, form)["changed_at"] is None
    sent = event_rows({**event, "ts_ms": 7}, form)["changed_at"]
    assert sent == datetime.datetime(1970, 1, 1, 0, 0, 0, 7_000, tzinfo=datetime.timezone.utc)


# Source: our own trial
@pytest.mark.parametrize("time", ["5", 5.5, True])
def test_a_time_that_is_no_whole_number_is_named(time: Any) -> None:
    event = {"op": "c", "after": {"id": 1, "v": 2}, "source": {"ts_ms": time}}
    assert "its time ts_ms is" in event_rows(event, "changes")


# Source: our own trial
def test_a_deletion_that_has_no_column_of_the_schema_deletes_no_null_key() -> None:
    event = {"op": "d", "before": {}, "after": None, "source": {"ts_ms": 5}}
    assert "without the row's key" in event_rows(event, "upsert")
    assert event_rows({**event, "before": {"id": 1}}, "upsert")["deleted"] is True
