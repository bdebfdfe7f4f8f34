"""CSV files of the real world."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, CsvSink, CsvSource, Dataflow, InvalidJob, JobFailed, committed_files
from barrier_runtime.connectors.source import SourceDescription

REFUSED = (InvalidJob, JobFailed)
BLOCK = 300_000  # more bytes than are read at once


def read(path: Path, **options: object) -> list[dict[str, object]]:
    """All rows of a CSV file, read by a whole job."""
    flow, out = Dataflow("field"), CollectSink()
    flow.read_csv("in", str(path), **options).sink("out", out)  # type: ignore[arg-type]
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


def written(folder: Path, rows: list[dict[str, Any]], schema: Any) -> Path:
    """The only file that a job with a CsvSink writes."""
    flow = Dataflow("written")
    flow.from_iterator("in", lambda index, count: iter(rows), schema=schema, splits=1).sink("out", CsvSink(str(folder)))
    flow.run_local(parallelism=1)
    (url,) = committed_files(str(folder))
    return Path(url.removeprefix("file://"))


# Source: our own trial
def test_a_quoted_comma_is_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('a,b\n"1,2",x\n')
    assert read(tmp_path / "in.csv") == [{"a": "1,2", "b": "x"}]


# Source: our own trial
@pytest.mark.parametrize("schema", [None, {"code": str, "name": str}])
def test_namibia_keeps_its_country_code(tmp_path: Path, schema: Any) -> None:
    (tmp_path / "in.csv").write_text('code,name\nNA,Namibia\nDE,null\n,\n"",NaN\n')
    assert read(tmp_path / "in.csv", schema=schema) == [
        {"code": "NA", "name": "Namibia"},
        {"code": "DE", "name": "null"},
        {"code": None, "name": None},
        {"code": "", "name": "NaN"},
    ]


# Source: our own trial
def test_spellings_of_null_are_null_in_declared_columns_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("n,x\n1,0.5\nNA,NA\nnull,N/A\n,NaN\n")
    rows = read(tmp_path / "in.csv", schema={"n": int, "x": float})
    assert [row["n"] for row in rows] == [1, None, None, None]
    assert [str(row["x"]) for row in rows] == ["0.5", "None", "None", "nan"]
    (tmp_path / "in.csv").write_text("n\nNaN\n")
    with pytest.raises(REFUSED, match="line 2: column 'n' is int64, and 'NaN' is not kept as int64"):
        read(tmp_path / "in.csv", schema={"n": int})


# Source: our own trial
@pytest.mark.slow
def test_a_written_nan_is_read_as_nan_and_a_null_as_null(tmp_path: Path) -> None:
    path = written(tmp_path, [{"x": float("nan")}, {"x": None}, {"x": float("-inf")}], {"x": float})
    assert [str(row["x"]) for row in read(path, schema={"x": float})] == ["nan", "None", "-inf"]


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize("schema", [None, {"n": int, "text": str}])
def test_quoted_line_breaks_are_kept_in_large_files(tmp_path: Path, schema: Any) -> None:
    texts = [f"x{number},1\n{number},y" for number in range(20_000)]
    (tmp_path / "in.csv").write_text("n,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(texts)))
    rows = read(tmp_path / "in.csv", schema=schema)
    assert [row["text"] for row in rows] == texts
    assert [row["n"] for row in rows] == list(range(len(texts)))


# Source: our own trial
@pytest.mark.parametrize(
    "values",
    [
        ["12345678901234567890", "12345678901234567891"],
        ["+49301234567", "+49301234568"],
        ["1.10", "1.1"],
        ["12e3", "12e4"],
        ["0x1F", "0x20"],
        ["007", "7"],
        [" 5", "5"],
        ["1,000", "2,000"],
        ["1_000", "2"],
        ["TRUE", "FALSE"],
        ["NA", "1"],
        ["nan", "inf"],
        ["-0", "-00"],
        ["0.1234567890123456789", "0.5"],
        ["12:30", "9:45"],
        ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00"],
        ["2024-02-30", "2024-02-29"],
        ["1e400", "1"],
        ["\u0661", "\u0662"],
    ],
)
def test_a_guess_keeps_what_is_written(tmp_path: Path, values: list[str]) -> None:
    (tmp_path / "in.csv").write_text("n|v\n" + "".join(f"{n}|{value}\n" for n, value in enumerate(values)))
    assert [row["v"] for row in read_alone(CsvSource(str(tmp_path / "in.csv"), delimiter="|"))] == values


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "later", "kind"),
    [
        ("1", "007", "int64"),
        ("1", "0x1F", "int64"),
        ("1", " 5", "int64"),
        ("1", "+5", "int64"),
        ("1", "-0", "int64"),
        ("1", "-07", "int64"),
        ("1", "5 ", "int64"),
        ("1", '"07"', "int64"),
        ("1", "NA", "int64"),
        ("1", "12345678901234567890", "int64"),
        ("0.5", "1.10", "double"),
        ("0.5", "12e3", "double"),
        ("0.5", "+1.5", "double"),
        ("0.5", "00.5", "double"),
        ("0.5", "1.", "double"),
        ("0.5", ".5", "double"),
        ("0.5", "12345678901234567890", "double"),
        ("0.5", "0.1234567890123456789", "double"),
        ("0.5", "1e400", "double"),
        ("true", "True", "bool"),
        ("2024-01-01", "2024-1-2", "date32"),
        ("2024-01-01 00:00:00", "2024-01-01 00:00:00.5", "timestamp"),
    ],
)
def test_a_later_value_that_its_guess_does_not_keep_ends_the_job(
    tmp_path: Path, first: str, later: str, kind: str
) -> None:
    lines = BLOCK // (len(first) + 1)
    (tmp_path / "in.csv").write_text("v\n" + f"{first}\n" * lines + f"{later}\n")
    with pytest.raises(InvalidJob, match=rf"in.csv, line {lines + 2}: column 'v' is {kind}.*, and '.*: "):
        read_alone(CsvSource(str(tmp_path / "in.csv")))


# Source: our own trial
@pytest.mark.slow
def test_nulls_of_a_single_column_are_read_back(tmp_path: Path) -> None:
    path = written(tmp_path, [{"n": 1}, {"n": None}, {"n": 3}, {"n": None}], {"n": int})
    assert [row["n"] for row in read(path)] == [1, None, 3, None]
    (tmp_path / "texts.csv").write_text('t\n\n""\nx\n\n')
    assert [row["t"] for row in read(tmp_path / "texts.csv")] == [None, "", "x", None]


# Source: our own trial
def test_numbers_that_their_type_cannot_hold_are_refused_with_their_line(tmp_path: Path) -> None:
    for text, kind in (("1e300", pa.float32()), ("1e400", pa.float64()), ("9007199254740993", pa.float64())):
        (tmp_path / "in.csv").write_text(f"x\n1\n{text}\n")
        with pytest.raises(InvalidJob, match=rf"line 3: column 'x' is {kind}, and '{text}' would .*: \w+"):
            read_alone(CsvSource(str(tmp_path / "in.csv"), schema={"x": kind}))


# Source: our own trial
def test_digits_of_a_second_are_kept_or_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("at\n2024-02-29T23:59:59.9999990Z\n")
    (row,) = read(tmp_path / "in.csv", schema={"at": "timestamp[us, tz=UTC]"})
    assert str(row["at"]) == "2024-02-29 23:59:59.999999+00:00"
    (tmp_path / "in.csv").write_text("at\n2024-02-29T23:59:59.9999999Z\n")
    with pytest.raises(REFUSED, match=r'line 2: .* more digits .* declare the column as "timestamp\[ns, tz=UTC\]"'):
        read(tmp_path / "in.csv", schema={"at": "timestamp[us, tz=UTC]"})


# Source: our own trial
def test_old_local_times_keep_the_seconds_of_their_zone(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("s", "Europe/Amsterdam"))])  # 19 minutes and 32 seconds before 1937
    path = written(tmp_path, [{"at": -1_500_000_000}], schema)
    assert path.read_text() == '"at"\n1922-06-20 21:20:00Z\n'
    (row,) = read(path, schema=schema)
    assert row["at"].timestamp() == -1_500_000_000  # type: ignore[attr-defined]


# Source: our own trial
@pytest.mark.parametrize("kind", ["binary", "large_binary", "fixed_size_binary[4]", "list<int64>"])
def test_a_column_that_csv_does_not_hold_is_refused_when_the_flow_is_written(tmp_path: Path, kind: str) -> None:
    stream = Dataflow("binary").from_iterator("in", lambda index, count: iter(()), schema={"raw": kind}, splits=1)
    with pytest.raises(InvalidJob, match=r"sink 'out': column 'raw' is .*, which CSV cannot hold: select\(\)"):
        stream.sink("out", CsvSink(str(tmp_path)))


# Source: our own trial
@pytest.mark.slow
def test_bytes_that_are_not_of_the_encoding_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"n,t\n" + b"1,x\n" * (BLOCK // 4) + b"2,\x81\n")
    for encoding, said in (("utf-8", "is not UTF-8"), ("cp1252", "is not cp1252")):
        with pytest.raises(InvalidJob, match=rf"line {BLOCK // 4 + 2}: 0x81 .*{said}"):
            read_alone(CsvSource(str(tmp_path / "in.csv"), encoding=encoding))


# Source: our own trial
@pytest.mark.parametrize("encoding", ["latin-1", "cp932", "utf-8"])
@pytest.mark.parametrize(
    ("bad", "said"), [("x;y", "column 'n' is int64"), ("1;2;3", "a line does not fit"), ('1;"a"b', "quote")]
)
def test_a_line_after_other_letters_has_its_own_number(tmp_path: Path, encoding: str, bad: str, said: str) -> None:
    letters = "\u30c6\u30b9\u30c8" if encoding == "cp932" else "\u00c4\u00d6\u00dc"
    text = "n;t\n" + f"1;{letters}\n" * 2_000 + f"{bad}\n1;z\n"
    (tmp_path / "in.csv").write_bytes(text.encode(encoding))
    with pytest.raises(REFUSED, match=f"line 2002: .*{said}"):
        read(tmp_path / "in.csv", schema={"n": int, "t": str}, delimiter=";", encoding=encoding)


# Source: our own trial
@pytest.mark.parametrize(("text", "kind"), [("0xFF", "int8"), ("0xFFFFFFFF", "int32"), ("0XFFFFFFFFFFFFFFFF", "int64")])
def test_a_hexadecimal_number_is_never_a_negative_one(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "in.csv").write_text(f"n,t\n-1,a\n0x7F,b\n{text},c\n")
    with pytest.raises(REFUSED, match=f"line 4: column 'n' is {kind}, and '{text}' is not kept as {kind}"):
        read(tmp_path / "in.csv", schema={"n": kind, "t": str})
    (tmp_path / "in.csv").write_text("n,t\n-1,a\n0x7F,b\n")
    assert [row["n"] for row in read(tmp_path / "in.csv", schema={"n": kind, "t": str})] == [-1, 127]


# Source: our own trial
@pytest.mark.parametrize("kind", ["float64", "float32", "decimal(10, 2)"])
@pytest.mark.parametrize("text", ["1.000", "1.000,5"])
def test_a_point_between_thousands_is_no_decimal_point(tmp_path: Path, kind: str, text: str) -> None:
    (tmp_path / "in.csv").write_text(f"n;t\n1,5;a\n{text};b\n")
    with pytest.raises(REFUSED, match=f"line 3: column 'n' is .*, and '{text}' has a point, and the decimal point is"):
        read(tmp_path / "in.csv", schema={"n": kind, "t": str}, delimiter=";", decimal_point=",")


# Spark and MySQL write a quote within a value after a backslash.
# Source: our own trial
@pytest.mark.parametrize("value", ['"say \\"hi\\""', '"x"y', '"x" ', '"a""b"c'])
@pytest.mark.parametrize("schema", [None, {"n": int, "v": str}, {"n": int}])
def test_text_behind_a_closing_quote_is_refused_with_its_line(tmp_path: Path, value: str, schema: Any) -> None:
    (tmp_path / "in.csv").write_text(f'n,v\n1,"ok ""x"""\n2,{value}\n3,z\n')
    with pytest.raises(REFUSED, match="line 3: a value begins with a quote here, and text follows its closing quote"):
        read(tmp_path / "in.csv", schema=schema)


# Source: our own trial
@pytest.mark.slow
def test_text_behind_a_closing_quote_is_refused_in_large_files_and_headers(tmp_path: Path) -> None:
    lines = "".join(f'{n},"x{n},1\n{n},y"\n' for n in range(BLOCK // 10))
    (tmp_path / "in.csv").write_text(f'n,v\n{lines}7,"a\\"b"\n')
    with pytest.raises(REFUSED, match=f"line {BLOCK // 10 * 2 + 2}: a value begins with a quote"):
        read(tmp_path / "in.csv", schema={"n": int, "v": str})
    (tmp_path / "header.csv").write_text('n,"a\\"b"\n1,2\n')
    with pytest.raises(REFUSED, match="in its header"):
        read(tmp_path / "header.csv")


# Source: our own trial
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_quotes_within_a_value_without_quotes_stand_for_themselves(tmp_path: Path, end: str) -> None:
    lines = ["n,v", '1,a"b"', '2,"x"', '3,5" pipe', '4,"y\nz"', '5,"last"']
    (tmp_path / "in.csv").write_bytes(end.join(lines).encode())
    assert [row["v"] for row in read(tmp_path / "in.csv")] == ['a"b"', "x", '5" pipe', "y\nz", "last"]


# Source: our own trial
@pytest.mark.parametrize("zone", ["+25:00", "-24:00", "+2500", "+99", "+02:60", "-0199"])
def test_an_offset_of_a_day_or_more_is_no_zone(tmp_path: Path, zone: str) -> None:
    (tmp_path / "in.csv").write_text(f"n,t\n1,2024-01-31T10:00:00+02:00\n2,2024-01-31T10:00:00.5{zone}\n")
    with pytest.raises(REFUSED, match=r"line 3: column 't' is timestamp\[us, tz=UTC\], and .* has no zone such as"):
        read(tmp_path / "in.csv", schema={"n": int, "t": "timestamp[us, tz=UTC]"})
    (tmp_path / "guessed.csv").write_text(f"n,t\n1,2024-01-31T10:00:00{zone}\n")
    assert [row["t"] for row in read(tmp_path / "guessed.csv")] == [f"2024-01-31T10:00:00{zone}"]
