"""Public reports about files and their formats, as small files with the right rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, CsvSink, Dataflow, JsonlSink, ParquetSink
from barrier_runtime.coordinator.status.status import JobStatus
from tests.field.jobs import REFUSED, read_file, stream_of, utc
from tests.waiting import until


# Source: pandas-dev/pandas#4793
def test_a_byte_order_mark_before_a_quoted_header_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf"Name","Team"\nada,x\n')
    assert read_file("csv", tmp_path / "a.csv") == [{"Name": "ada", "Team": "x"}]


# Source: apache/arrow#51368
@pytest.mark.slow
def test_a_quoted_line_break_of_two_bytes_stays_whole_wherever_it_stands(tmp_path: Path) -> None:
    text = "A\r\nB"
    for at in range((256 << 10) - 12, (256 << 10) + 4):
        first = "z" * (at - len('id,s\n0,"') - 1)
        (tmp_path / "a.csv").write_bytes(f'id,s\n0,"{first}{text}"\n1,plain\n'.encode())
        rows = read_file("csv", tmp_path / "a.csv", schema={"id": int, "s": str})
        assert [row["s"] for row in rows] == [first + text, "plain"], at


# Source: pola-rs/polars#19078, pandas-dev/pandas#59009
@pytest.mark.slow
def test_quoted_line_breaks_in_a_large_file_make_no_rows(tmp_path: Path) -> None:
    lines = [f'{number};"x{number}\ny;{number}"' for number in range(30_000)]
    (tmp_path / "a.csv").write_text("id;s\n" + "\n".join(lines) + "\n")
    rows = read_file("csv", tmp_path / "a.csv", delimiter=";", schema={"id": int, "s": str})
    assert [row["id"] for row in rows] == list(range(30_000))
    assert all(row["s"] == f"x{row['id']}\ny;{row['id']}" for row in rows)


# Source: apache/arrow#2883
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_blank_lines_mean_the_same_with_every_delimiter(tmp_path: Path, delimiter: str) -> None:
    (tmp_path / "a.csv").write_text(f"a{delimiter}b\n\n1{delimiter}2\n\n")
    rows = read_file("csv", tmp_path / "a.csv", delimiter=delimiter, schema={"a": int, "b": int})
    assert rows == [{"a": 1, "b": 2}]


# Source: duckdb/duckdb#3238
def test_files_of_one_folder_may_order_their_columns_differently(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": pa.array([2], pa.int32())}), tmp_path / "2.parquet")
    rows = read_file("parquet", tmp_path)
    assert sorted(rows, key=lambda row: row["a"]) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


# Source: delta-io/delta-rs#1610
def test_fields_of_a_struct_are_matched_by_name(tmp_path: Path) -> None:
    first, second = (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        pa.struct([("y", pa.string()), ("x", pa.int64())]),
    )
    pq.write_table(pa.table({"s": pa.array([{"x": 1, "y": "a"}], first)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"s": pa.array([{"y": "b", "x": 2}], second)}), tmp_path / "2.parquet")
    rows = read_file("parquet", tmp_path)
    assert sorted(row["s"]["x"] for row in rows) == [1, 2]
    assert {row["s"]["x"]: row["s"]["y"] for row in rows} == {1: "a", 2: "b"}


# Source: apache/datafusion#1527
def test_a_struct_without_one_of_its_fields_is_refused_with_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": [{"x": 1, "y": "a"}]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"s": [{"x": 2}]}), tmp_path / "2.parquet")
    with pytest.raises(REFUSED, match=r"2\.parquet: column 's'"):
        read_file("parquet", tmp_path)


# Source: apache/datafusion#14755
def test_a_file_of_another_type_is_widened_or_refused_whatever_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([2**40], pa.int64())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array([7], pa.int32())}), tmp_path / "2.parquet")
    assert sorted(row["a"] for row in read_file("parquet", tmp_path)) == [7, 2**40]
    (tmp_path / "2.parquet").rename(tmp_path / "0.parquet")
    with pytest.raises(REFUSED, match=r"column 'a'"):
        read_file("parquet", tmp_path)


# Source: pandas-dev/pandas#53798, apache/arrow#40124
def test_dicts_with_other_keys_lose_none_of_them() -> None:
    rows = [{"d": {"a": 1, "b": 2}}, {"d": {"a": 4, "c": 5}}]
    flow, out = Dataflow("field"), CollectSink()
    stream_of(flow, "in", [{"n": 0}, {"n": 1}], {"n": int}).map(lambda row: rows[row["n"]]).sink("out", out)
    flow.run_local(parallelism=1)
    assert [{name: value for name, value in row["d"].items() if value is not None} for row in out.rows()] == [
        {"a": 1, "b": 2},
        {"a": 4, "c": 5},
    ]


def json_rows(path: Path, *lines: str, **schema: Any) -> list[dict[str, Any]]:
    (path / "a.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass") + b"\n")
    return read_file("jsonl", path / "a.jsonl", schema=schema)


# Source: tidwall/gjson#74, valyala/fastjson#15
def test_whole_numbers_beyond_53_bits_stay_exact(tmp_path: Path) -> None:
    assert json_rows(tmp_path, '{"id": 9007199254740993}', id=int) == [{"id": 9007199254740993}]
    assert read_file("jsonl", tmp_path / "a.jsonl") == [{"id": 9007199254740993}]


# Source: google/gson#3113, rust-works/succinctly#2013
@pytest.mark.parametrize("text", ["\\ud800", "\\udc00", "\\ud800x", "\\ude00\\ud83d"])
def test_a_lone_surrogate_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(REFUSED, match=r"a\.jsonl"):
        json_rows(tmp_path, '{"x": "good"}', '{"x": "' + text + '"}', x=str)


# Source: spray/spray-json#167, java-json-tools/json-schema-core#2
@pytest.mark.parametrize("line", ['{"x": 1} trash', '{"x": 1},', "[1]", '{"x": 1', '{"x": 1}}'])
def test_a_line_that_is_more_or_less_than_an_object_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(REFUSED, match=r"a\.jsonl"):
        json_rows(tmp_path, '{"x": 0}', line, x=int)


# Source: apache/arrow-rs#9204
@pytest.mark.parametrize("line", ['{, "x": 1}', '{"x": 1,}', '{"x": 1,, "y": 2}', '{"y": [1,, 2], "x": 1}'])
def test_illegal_commas_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(REFUSED, match=r"a\.jsonl"):
        json_rows(tmp_path, line, x=int)


# Source: duckdb/duckdb#11152, simdjson/simdjson-java#37
def test_an_object_with_a_name_twice_is_refused_with_the_name(tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match=r"a\.jsonl"):
        json_rows(tmp_path, '{"x": 1, "x": 2}', x=int)


# Source: delta-io/delta-rs#1591, ClickHouse/ClickHouse#111758
@pytest.mark.slow
@pytest.mark.parametrize("sink", [CsvSink, JsonlSink, ParquetSink])
def test_texts_with_signs_of_paths_are_read_back_from_partitions(tmp_path: Path, sink: Any) -> None:
    texts = ["a/b", "%", "100%25", "ID$", "R&D", "a b", "a=b", "..", ".", "ü", "x:y", "*", "?", "#", "", None, "null"]
    flow = Dataflow("field")
    rows = [{"k": text, "n": number} for number, text in enumerate(texts)]
    stream_of(flow, "in", rows, {"k": str, "n": int}).sink("out", sink(str(tmp_path / "out"), partition_by=["k"]))
    flow.run_local(parallelism=1)
    kind = {CsvSink: "csv", JsonlSink: "jsonl", ParquetSink: "parquet"}[sink]
    read = read_file(kind, tmp_path / "out", schema={"k": str, "n": int})
    assert {row["n"]: row["k"] or None for row in read} == {row["n"]: row["k"] or None for row in rows}  # as in Spark


# Source: delta-io/delta-rs#495
@pytest.mark.slow
def test_a_partition_column_may_have_signs_of_paths_in_its_name(tmp_path: Path) -> None:
    name, flow = "x%20/x=", Dataflow("field")
    sink = ParquetSink(str(tmp_path / "out"), partition_by=[name])
    stream_of(flow, "in", [{name: 1, "y": 10}, {name: 2, "y": 20}], {name: int, "y": int}).sink("out", sink)
    flow.run_local(parallelism=1)
    rows = read_file("parquet", tmp_path / "out", schema={name: int, "y": int})
    assert sorted((row[name], row["y"]) for row in rows) == [(1, 10), (2, 20)]


# Source: msgspec/msgspec#200
def test_nanoseconds_in_a_text_are_kept_or_refused(tmp_path: Path) -> None:
    line = '{"at": "2015-01-02T18:10:50.895208559+01:00"}'
    with pytest.raises(REFUSED, match="at"):
        json_rows(tmp_path, line, at=pa.timestamp("us", "UTC"))
    flow = Dataflow("field")
    read = flow.read_jsonl("in", str(tmp_path / "a.jsonl"), schema={"at": pa.timestamp("ns", "UTC")})
    read.sink("out", ParquetSink(str(tmp_path / "out")))
    flow.run_local(parallelism=1)
    stored = pq.read_table(tmp_path / "out").column("at").cast(pa.int64()).to_pylist()
    assert stored == [1_420_218_650_895_208_559]


# Source: trinodb/trino#9704
def test_times_of_an_hour_that_comes_twice_stay_apart(tmp_path: Path) -> None:
    hours = [utc(2021, 10, 31, hour, 30) for hour in range(4)]
    kind = pa.timestamp("us", "Europe/Warsaw")
    pq.write_table(pa.table({"at": pa.array(hours, kind)}), tmp_path / "a.parquet")
    read = read_file("parquet", tmp_path / "a.parquet")
    assert [row["at"].timestamp() for row in read] == [hour.timestamp() for hour in hours]
    flow = Dataflow("field")
    sink = JsonlSink(str(tmp_path / "out"))
    flow.read_parquet("in", str(tmp_path / "a.parquet")).sink("out", sink)
    flow.run_local(parallelism=1)
    lines = "".join(path.read_text() for path in (tmp_path / "out").glob("*.jsonl")).splitlines()
    assert len({json.loads(line)["at"] for line in lines}) == 4


# Source: our own trial
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_later_files_have_is_not_left_out_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    for name, rows in (("a", {"x": [1]}), ("b", {"x": [2], "new": [3]}), ("c", {"x": [4], "new": [5]})):
        write = pq.write_table if kind == "parquet" else pacsv.write_csv
        write(pa.table(rows), tmp_path / f"{name}.{kind}")
    flow, sink = Dataflow("field"), CollectSink()
    read = flow.read_parquet if kind == "parquet" else flow.read_csv
    read("in", str(tmp_path)).sink("out", sink)
    (slot,) = flow.run_local(parallelism=1).status.slots
    assert sorted(row["x"] for row in sink.rows()) == [1, 2, 4]
    assert slot.metrics["in.files_with_more_columns"] == 2
    told = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert len(told) == 1
    assert "column 'new'" in told[0]


# Source: our own trial
@pytest.mark.parametrize(
    ("data", "encoding", "told"),
    [
        ("\ufeffa,b\n1,é\n".encode(), "cp1252", "begins with a byte-order mark of UTF-8"),
        ("a\n1\n".encode("utf-16-le"), "utf-8", "its header has NUL bytes, as text in UTF-16 has"),
        ("a\n1\n".encode("utf-16-be"), "utf-8", "its header has NUL bytes, as text in UTF-16 has"),
        (b"a,b\n1,2\n", "idna", "encoding='idna': use one in which ASCII is as it is"),
    ],
)
def test_a_csv_file_of_another_encoding_is_refused(tmp_path: Path, data: bytes, encoding: str, told: str) -> None:
    (tmp_path / "in.csv").write_bytes(data)
    with pytest.raises(REFUSED, match=told):
        read_file("csv", tmp_path, encoding=encoding)


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize("watch", [None, 0.01])
def test_files_that_a_folder_has_beside_those_read_are_counted(tmp_path: Path, watch: Any) -> None:
    for name in ("a.csv", "b.csv", "notes.md", "old.txt", "_SUCCESS"):
        (tmp_path / name).write_text("n\n1\n")
    flow, sink = Dataflow("field"), CollectSink()
    flow.read_csv("in", str(tmp_path), watch=watch).sink("out", sink)
    with flow.start_local(parallelism=2) as job:
        until(lambda: len(sink.rows()) == 2, "both files are read")
        until(lambda: counted(job.status(), "in.files_passed_over") == [2], "the status has the count, once")


def counted(status: JobStatus | None, metric: str) -> list[float]:
    return [] if status is None else [slot.metrics[metric] for slot in status.slots if metric in slot.metrics]


# Source: our own trial
def test_two_parquet_columns_of_one_name_are_refused_with_it(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "in.parquet")
    with pytest.raises(REFUSED, match="two columns 'a': rename one"):
        read_file("parquet", tmp_path)


# Source: our own trial
def test_parquet_text_that_is_not_utf8_ends_the_job_with_a_remedy(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    pq.write_table(pa.table({"a": broken}), tmp_path / "in.parquet")
    flow = Dataflow("field")
    flow.read_parquet("in", str(tmp_path)).map(lambda row: row, schema={"a": str}).sink("out", CollectSink())
    with pytest.raises(REFUSED, match=r"is not UTF-8: .*write these anew as UTF-8"):
        flow.run_local(parallelism=1)


# Source: our own trial
def test_two_folders_of_one_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "k=1" / "k=2").mkdir(parents=True)
    (tmp_path / "k=1" / "k=2" / "a.csv").write_text("v\n1\n")
    with pytest.raises(REFUSED, match="name the column 'k' twice: rename one"):
        read_file("csv", tmp_path)
