"""JSON lines and text files of the real world."""

from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import (
    CollectSink,
    Dataflow,
    InvalidJob,
    JobFailed,
    JsonlSink,
    JsonlSource,
    ParquetSink,
    committed_files,
)
from barrier_runtime.connectors.source import SourceDescription

REFUSED = (InvalidJob, JobFailed)
BLOCK = 300_000  # more bytes than are read at once


def read(path: Path, **options: object) -> list[dict[str, Any]]:
    flow, out = Dataflow("field"), CollectSink()
    flow.read_jsonl("in", str(path), **options).sink("out", out)  # type: ignore[arg-type]
    flow.run_local(parallelism=1)
    return list(out.rows())


def read_alone(source: SourceDescription) -> list[dict[str, Any]]:
    """All rows of a source of a single file, read without a job."""
    made = source.named("in")
    (split,) = made.splits(1)
    reader, rows = made.reader(split), []
    while not reader.finished:
        polled = reader.poll(100_000, 0)
        rows += [] if polled is None else polled.rows.to_pylist()
    reader.close()
    return rows


def lines(path: Path, *texts: str) -> Path:
    path.write_bytes("".join(text + "\n" for text in texts).encode("utf-8", "surrogatepass"))
    return path


# Source: our own trial
def test_lines_that_are_not_utf8_are_named_before_a_sink_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"x": "a"}\n' * (BLOCK // 11) + b'{"x": "caf\xe9"}\n')
    flow = Dataflow("latin")
    flow.read_jsonl("in", str(path), schema={"x": str}).sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(REFUSED, match=rf"in.jsonl, line {BLOCK // 11 + 1}: 0xe9 is not UTF-8: convert the file"):
        flow.run_local(parallelism=1)


# Source: our own trial
@pytest.mark.parametrize("data", [b'{"caf\xe9": 1}\n', b'{"x": "\xed\xa0\x80"}\n', '{"x": "a"}\n'.encode("utf-16")])
def test_keys_surrogates_and_other_encodings_are_not_utf8_either(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(data)
    for schema in (None, {"x": str}):
        with pytest.raises(InvalidJob, match=r"in.jsonl, line 1: 0x\w\w is not UTF-8: convert the file"):
            read_alone(JsonlSource(str(tmp_path / "in.jsonl"), schema=schema))


# Source: our own trial
def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", '{"x": "a"}', '{"x": "\\ud800"}')
    with pytest.raises(REFUSED, match="line 2: column 'x' is string, and a text has half of a surrogate pair"):
        read(path, schema={"x": str})


# Source: our own trial
def test_a_line_of_too_many_levels_is_refused_by_its_number(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", '{"m": {}}', '{"m": {}, "z": ' + 200_000 * "[" + 200_000 * "]" + "}")
    with pytest.raises(REFUSED, match="line 2: it has too many arrays or objects inside each other: correct the file"):
        read(path, schema={"m": pa.map_(pa.string(), pa.int64())})


# Source: our own trial
def test_a_text_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\n" * (BLOCK // 2) + b"caf\xe9\n")
    flow = Dataflow("text")
    flow.read_text("in", str(tmp_path / "in.txt")).sink("out", CollectSink())
    with pytest.raises(REFUSED, match=rf"in.txt, line {BLOCK // 2 + 1}: 0xe9 is not UTF-8: convert the file, or take"):
        flow.run_local(parallelism=1)


# Source: our own trial
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (2**63 - 1, "int64"),
        (2**63, "uint64"),
        (2**64 - 1, "uint64"),
        (2**64, ""),
        (-(2**63), "int64"),
        (-(2**63) - 1, ""),
    ],
)
def test_whole_numbers_are_guessed_up_to_the_ends_of_64_bits(tmp_path: Path, number: int, kind: str) -> None:
    source = JsonlSource(str(lines(tmp_path / "in.jsonl", f'{{"x": {number}}}')))
    if not kind:
        with pytest.raises(InvalidJob, match=f"column 'x' has the number {number}, which would lose digits"):
            source.named("in")
        return
    assert source.named("in").schema.field("x").type == kind
    assert read_alone(source) == [{"x": number}]


# Source: our own trial
def test_whole_numbers_keep_their_digits(tmp_path: Path) -> None:
    large = ['{"x": 12345678901234567890}', '{"x": 12345678901234567891}']
    path = lines(tmp_path / "in.jsonl", *large)
    assert [row["x"] for row in read(path)] == [12345678901234567890, 12345678901234567891]
    path = lines(tmp_path / "in.jsonl", '{"x": 1}', '{"x": 123456789012345678901234567890}')
    with pytest.raises(InvalidJob, match=r"line 2: column 'x' has the number 1234\d+, which would lose"):
        read(path)
    assert [str(row["x"]) for row in read(path, schema={"x": "decimal(38, 0)"})][1] == "123456789012345678901234567890"
    path = lines(tmp_path / "in.jsonl", '{"x": {"y": [0.5, -12345678901234567891]}}')
    with pytest.raises(InvalidJob, match="line 1: column 'x' has the number -12345678901234567891"):
        read(path)


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("1", "12345678901234567890"),
        ("1", "1.5"),
        ("1", '"NaN"'),
        ("0.5", "12345678901234567890"),
        ("0.5", "1e400"),
        ("0.5", '"nan"'),
        ("true", "1"),
        ('"a"', "1"),
        ('"2024-01-01"', '"2024-1-2"'),
        ('"2024-01-01T00:00:00Z"', '"2024-01-01T00:00:00.5Z"'),
    ],
)
def test_a_later_value_that_its_guess_does_not_keep_ends_the_job(tmp_path: Path, first: str, later: str) -> None:
    line = f'{{"x": {first}}}'
    count = BLOCK // len(line)
    path = lines(tmp_path / "in.jsonl", *[line] * count, f'{{"x": {later}}}')
    with pytest.raises(InvalidJob, match=rf"in.jsonl, line {count + 1}: column 'x' is \w+.*, and .*: "):
        read_alone(JsonlSource(str(path)))


# Source: our own trial
def test_not_a_number_and_infinities_are_texts_in_columns_of_floats_alone(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "in.jsonl",
        '{"x": "NaN", "t": "NaN", "many": ["Infinity", 1], "map": {"NaN": "-Infinity"}}',
        '{"x": NaN, "t": null, "many": [null], "map": {}}',
        '{"x": 1, "t": "Infinity", "many": [], "map": null}',
    )
    schema = {"x": float, "t": str, "many": "list<double>", "map": "map<string, double>"}
    rows = read(path, schema=schema)
    assert [str(row["x"]) for row in rows] == ["nan", "nan", "1.0"]
    assert [row["t"] for row in rows] == ["NaN", None, "Infinity"]
    assert [row["many"] for row in rows] == [[float("inf"), 1.0], [None], []]
    assert [row["map"] for row in rows] == [[("NaN", float("-inf"))], [], None]
    for other in ('"nan"', '"inf"', '"1.5"', '"+Infinity"', "true"):
        path = lines(tmp_path / "in.jsonl", f'{{"x": {other}}}')
        with pytest.raises(InvalidJob, match=r"line 1: column 'x' is double, and .* is not kept as double"):
            read_alone(JsonlSource(str(path), schema={"x": float}))


# Source: our own trial
@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (pa.float32(), "1e300", "would become infinite as float: declare the column as float64"),
        (pa.float64(), "9007199254740993", "would lose digits as double: declare"),
        (pa.float32(), "16777217", "would lose digits as float: declare"),
        (pa.int8(), "300", "is not kept as int8"),
        (pa.int64(), "1.5", "is not kept as int64"),
        (pa.int64(), '"1"', "the text '1' is not kept as int64"),
        (pa.string(), "1", "the number 1 is not kept as string"),
        (pa.decimal128(5, 2), "1.005", "is no number, or has more digits than"),
        (pa.date32(), '"2024-02-30"', "is not kept as date32"),
        (pa.time64("us"), '"12:00:00.1234567"', "has more digits of a second"),
        (pa.timestamp("ms"), '"2024-02-29T23:59:59.9999"', "has more digits of a second"),
        (pa.duration("ms"), '"PT0.0001S"', "is not kept"),
        (pa.duration("s"), '"1 hour"', "is not kept"),
        (pa.binary(), '"caf\u00e9"', "is not kept"),
        (pa.binary(2), '"YQ=="', "is not kept"),
        (pa.map_(pa.string(), pa.int64()), '{"a": 1, "a": 2}', "has 'a' twice"),
        (pa.list_(pa.int64(), 2), "[1]", "an array has 1 values in place of 2"),
    ],
)
def test_a_value_that_its_column_does_not_keep_is_named(
    tmp_path: Path, kind: pa.DataType, text: str, said: str
) -> None:
    path = lines(tmp_path / "in.jsonl", '{"x": null}', f'{{"x": {text}}}')
    with pytest.raises(InvalidJob, match=rf"(?s)line 2: column 'x' is .*, and .*{said}"):
        read_alone(JsonlSource(str(path), schema=pa.schema([("x", kind)])))


# Source: our own trial
def test_dates_that_a_sink_writes_are_read_back(tmp_path: Path) -> None:
    schema = {"day": "date32", "at": datetime, "took": timedelta, "raw": bytes, "tags": "map<string, date32>"}
    row = {
        "day": date(2024, 1, 2),
        "at": datetime(2024, 2, 29, 23, 59, 59, 999_999, timezone.utc),
        "took": timedelta(days=1, microseconds=1),
        "raw": b"\xff",
        "tags": {"a": date(1, 1, 1)},
    }
    flow = Dataflow("written")
    source = flow.from_iterator("in", lambda index, count: iter([row]), schema=schema, splits=1)
    source.sink("out", JsonlSink(str(tmp_path)))
    flow.run_local(parallelism=1)
    (url,) = committed_files(str(tmp_path))
    (back,) = read(Path(url.removeprefix("file://")), schema=schema)
    assert back == {**row, "tags": [("a", date(1, 1, 1))]}


# Source: our own trial
def test_dates_and_moments_are_guessed_with_their_zone(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "in.jsonl",
        '{"day": "2024-01-02", "utc": "2024-01-02T03:04:05Z", "local": "2024-01-02T03:04:05", "mixed": "2024-01-02"}',
        '{"day": null, "utc": "2024-01-02T03:04:05+02:00", "local": null, "mixed": "2024-01-02T00:00:00"}',
    )
    schema = Dataflow("guessed").read_jsonl("in", str(path)).schema
    assert schema == pa.schema(
        [
            ("day", pa.date32()),
            ("utc", pa.timestamp("s", "UTC")),
            ("local", pa.timestamp("s")),
            ("mixed", pa.string()),
        ]
    )
    assert [row["utc"].hour for row in read(path)] == [3, 1]


# Source: our own trial
@pytest.mark.parametrize("schema", [None, {"x": int}])
@pytest.mark.parametrize("data", ['null\n{"x": 1}\n', '{"x": 1}\nnull\n', '{"x": 1} null\n'])
def test_a_line_of_null_is_no_row_and_ends_no_process(tmp_path: Path, data: str, schema: Any) -> None:
    (tmp_path / "in.jsonl").write_text(data)
    with pytest.raises(REFUSED, match=r"line \d: it is (null|not one JSON object)"):
        read(tmp_path / "in.jsonl", schema=schema)


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize("inside", ["{}", '{{"y": {}}}', "[{}]"])
@pytest.mark.parametrize(
    "texts", [("2024-01-01T00:00:00Z", "2024-01-01T00:00:00"), ("2024-01-01T00:00:00", "2024-01-01T00:00:00+02:00")]
)
def test_a_guessed_time_has_a_zone_everywhere_or_nowhere(tmp_path: Path, texts: tuple[str, str], inside: str) -> None:
    first, later = (f'{{"x": {inside.format(chr(34) + text + chr(34))}}}\n' for text in texts)
    (tmp_path / "in.jsonl").write_text(first * 12_000 + later)
    with pytest.raises(REFUSED, match=r"line 12001: column 'x' is .*, and '.*' has (a|no) zone; the type was guessed"):
        read(tmp_path / "in.jsonl")


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "later", "name"),
    [
        ('{"x": 1}', '{"x": 2, "y": 3}', "y"),
        ('{"x": {"a": 1}}', '{"x": {"a": 2, "b": 3}}', "x.b"),
        ('{"x": [{"a": 1}]}', '{"x": [{"a": 2, "b": 3}]}', "x.b"),
        ('{"x": {}}', '{"x": {"b": 3}}', "x.b"),
    ],
)
def test_a_field_that_comes_later_is_not_left_out_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str, later: str, name: str
) -> None:
    (tmp_path / "in.jsonl").write_text(f"{first}\n" * 40_000 + f"{later}\n" * 2)
    flow, sink = Dataflow("field"), CollectSink()
    flow.read_jsonl("in", str(tmp_path / "in.jsonl")).sink("out", sink)
    (slot,) = flow.run_local(parallelism=1).status.slots
    assert len(sink.rows()) == 40_002
    assert slot.metrics["in.files_with_more_columns"] == 1
    told = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert len(told) == 1
    assert f"column {name!r}" in told[0]
    assert "in.jsonl, line 40001: " in told[0]


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "later", "line"),
    [
        ('{"x": {"a": 1}}', '{"x": {"a": 2, "b": 3}}', 40_001),
        ('{"x": {"a": 1, "b": 0}, "more": 1}', '{"x": {"a": 2}}', 1),
        ('{"m": {"k": {"a": 1, "b": 0}}}', '{"m": {}}', 1),
        ('{"x": {"a": 1}, "more": {"b": 1}}', '{"x": {"a": 2}, "others": [{"b": 1}]}', None),
    ],
)
def test_a_key_of_an_object_that_the_schema_lacks_is_told_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str, later: str, line: int | None
) -> None:
    """A field that the schema lacks is left out on purpose, without a word."""
    inside = pa.struct([("a", pa.int64())])
    schema = pa.schema([("m", pa.map_(pa.string(), inside))] if '"m"' in first else [("x", inside)])
    for name in ("in-1.jsonl", "in-2.jsonl"):
        (tmp_path / name).write_text(f"{first}\n" * 40_000 + f"{later}\n" * 2)
    flow, sink = Dataflow("key"), CollectSink()
    flow.read_jsonl("in", str(tmp_path), schema=schema).sink("out", sink)
    (slot,) = flow.run_local(parallelism=1).status.slots
    assert len(sink.rows()) == 2 * 40_002
    assert "'b'" not in str(sink.rows()[-1])
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(told) == (0 if line is None else 1)
    assert slot.metrics.get("in.files_with_more_columns", 0) == 2 * len(told)
    if line is not None:
        key = "m.k.b" if '"m"' in first else "x.b"
        assert f".jsonl, line {line}: key {key!r} of an object is not in schema=" in told[0]


# Source: our own trial
@pytest.mark.parametrize("zone", ["+25:00", "-24:00", "+2500", "+02:60"])
def test_an_offset_of_a_day_or_more_is_no_zone(tmp_path: Path, zone: str) -> None:
    path = lines(tmp_path / "in.jsonl", '{"t": "2024-01-31T10:00:00+02:00"}', f'{{"t": "2024-01-31T10:00:00{zone}"}}')
    with pytest.raises(REFUSED, match=r"line 2: column 't' is timestamp\[us, tz=UTC\], and .* has no zone such as"):
        read(path, schema={"t": "timestamp[us, tz=UTC]"})
    assert [row["t"] for row in read(path)][1] == f"2024-01-31T10:00:00{zone}"


# Source: our own trial
@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2026-01-31T10:00:00Z", "timestamp[s, tz=UTC]", datetime(2026, 1, 31, 10, tzinfo=timezone.utc)),
        ("2026-01-31T10:00:00.123Z", "timestamp[us, tz=UTC]", datetime(2026, 1, 31, 10, 0, 0, 123_000, timezone.utc)),
        (
            "2026-01-31T10:00:00.123456+00:00",
            "timestamp[us, tz=UTC]",
            datetime(2026, 1, 31, 10, 0, 0, 123_456, timezone.utc),
        ),
        ("2026-01-31T10:00:00.5+02:00", "timestamp[us, tz=UTC]", datetime(2026, 1, 31, 8, 0, 0, 500_000, timezone.utc)),
        ("2026-01-31 10:00:00.5", "timestamp[us]", datetime(2026, 1, 31, 10, 0, 0, 500_000)),
        ("2026-01-31", "date32[day]", date(2026, 1, 31)),
        ("10:00:00", "string", "10:00:00"),
        ("2026-01-31T10:00:00.5Z or so", "string", "2026-01-31T10:00:00.5Z or so"),
    ],
)
def test_times_with_fractions_and_zones_are_guessed_as_in_csv(
    tmp_path: Path, text: str, kind: str, value: object
) -> None:
    path = lines(tmp_path / "in.jsonl", f'{{"at": "{text}", "n": {{"at": "{text}", "all": ["{text}"]}}}}')
    schema = JsonlSource(str(path)).named("in").schema
    assert (str(schema.field("at").type), str(schema.field("n").type.field("all").type.value_type)) == (kind, kind)
    assert read(path) == [{"at": value, "n": {"at": value, "all": [value]}}]


# Source: our own trial
def test_a_column_of_times_and_other_texts_stays_text(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", '{"at": "2026-01-31T10:00:00.5Z"}', '{"at": "soon"}', '{"at": null}')
    assert [row["at"] for row in read(path)] == ["2026-01-31T10:00:00.5Z", "soon", None]
