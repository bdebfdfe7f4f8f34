"""Parquet, CSV and JSONL files: every row once from any position; errors name file, column and remedy."""

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.source import lines as line_blocks
from barrier_runtime.connectors.files.source.csv import CsvFiles, CsvForm
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.connectors.files.source.listing import find_files
from barrier_runtime.connectors.files.source.parquet import ParquetFiles
from barrier_runtime.connectors.source import Source
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("at", pa.timestamp("ms")), ("x", pa.float64())])
EPOCH = datetime.datetime(2020, 1, 1)


def table(first: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "n": range(first, first + rows),
            "s": [None if i % 5 == 0 else f"row {i}, é" for i in range(rows)],
            "at": [EPOCH + datetime.timedelta(seconds=i) for i in range(rows)],
            "x": [i / 4 for i in range(rows)],
        },
        schema=SCHEMA,
    )


def write_parquet(path: Path, rows: pa.Table) -> None:
    pq.write_table(rows, path, row_group_size=97)


def write_csv(path: Path, rows: pa.Table) -> None:
    pacsv.write_csv(rows, path)


def write_jsonl(path: Path, rows: pa.Table) -> None:
    lines = [json.dumps({**row, "at": str(row["at"]), "extra": [1]}) for row in rows.to_pylist()]
    path.write_text("\n".join(lines))  # no line end after the last


def compressed(write: Callable[[Path, pa.Table], None], codec: str) -> Callable[[Path, pa.Table], None]:
    def write_compressed(path: Path, rows: pa.Table) -> None:
        write(path, rows)
        plain = path.read_bytes()
        with pa.CompressedOutputStream(str(path), codec) as out:
            out.write(plain)

    return write_compressed


FORMATS: dict[str, tuple[Callable[[Path, pa.Table], None], Callable[..., Source]]] = {
    "parquet": (write_parquet, lambda paths, pace=None: ParquetFiles("src", paths, SCHEMA, pace)),
    "csv": (write_csv, lambda paths, pace=None: CsvFiles("src", paths, SCHEMA, pace)),
    "jsonl": (write_jsonl, lambda paths, pace=None: JsonlFiles("src", paths, SCHEMA, pace)),
}
for ending, codec in (("gz", "gzip"), ("zst", "zstd"), ("bz2", "bz2")):
    FORMATS[f"jsonl.{ending}"] = (compressed(write_jsonl, codec), FORMATS["jsonl"][1])
FORMATS["csv.gz"] = (compressed(write_csv, "gzip"), FORMATS["csv"][1])


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small blocks, so that these tests' files have many."""
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 700)
    return str(request.param)


def folder(tmp_path: Path, format: str, sizes: tuple[int, ...] = (250, 1, 400)) -> Path:
    write, _ = FORMATS[format]
    first = 0
    for number, size in enumerate(sizes):
        write(tmp_path / f"part-{number}.{format}", table(first, size))
        first += size
    return tmp_path


# ---------------------------------------------------------------- reading


def test_a_folder_is_read_whole_in_order_with_hidden_files_left_out(tmp_path: Path, format: str) -> None:
    write, make = FORMATS[format]
    folder(tmp_path, format)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path / "deep" / "er" / f"x.{format}", table(651, 10))
    (tmp_path / "_staging").mkdir()
    for hidden in (f".part.{format}", f"_part.{format}", f"_staging/part.{format}", "README.txt"):
        (tmp_path / hidden).write_bytes(b"garbage")
    driver = opened(spec_of(make(str(tmp_path))), World())
    rows = rows_of(drained(driver))
    assert sorted(rows, key=lambda row: row["n"]) == [
        *table(0, 250).to_pylist(),
        *table(250, 1).to_pylist(),
        *table(251, 400).to_pylist(),
        *table(651, 10).to_pylist(),
    ]
    assert driver.records == 661


@pytest.mark.slow
def test_files_lists_and_globs_name_the_same_rows(tmp_path: Path, format: str) -> None:
    make = FORMATS[format][1]
    folder(tmp_path, format)
    paths = [str(tmp_path / f"part-{i}.{format}") for i in range(3)]
    for given_paths in (paths, str(tmp_path / f"part-*.{format}"), [paths[0], str(tmp_path / f"part-[12].{format}")]):
        spec = spec_of(make(given_paths))
        assert [split.id for split in spec.splits] == [f"part-{i}.{format}" for i in range(3)]
        assert len(rows_of(drained(opened(spec, World())))) == 651


@pytest.mark.slow
@examples(15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(polls=st.lists(st.one_of(st.integers(1, 300), st.none()), max_size=8))
def test_from_any_position_the_very_next_row_comes(tmp_path: Path, format: str, polls: list[int | None]) -> None:
    make = FORMATS[format][1]
    spec, world = spec_of(make(str(folder(tmp_path, format)))), World()
    driver, batches = opened(spec, world), []
    for rows in [*polls, None]:
        if rows is None:
            snapshot = snapshot_of(driver, world)
            driver.close()
            driver = opened(spec, world, (snapshot,))
        elif (batch := driver.poll(0, rows)) is not None:
            batches.append(batch)
    found = sorted(rows_of(batches + drained(driver)), key=lambda row: row["n"])
    assert [row["n"] for row in found] == list(range(651))
    assert found[300] == table(251, 50).to_pylist()[49]


def test_paced_file_emits_rows_when_due_and_a_restore_keeps_its_schedule(tmp_path: Path, format: str) -> None:
    make = FORMATS[format][1]
    spec, world = spec_of(make(str(folder(tmp_path, format, (100, 100))), 1_000.0)), World()  # 500/s per file
    ms = 1_000_000
    driver = opened(spec, world)
    first, second = driver.poll(10**18), driver.poll(10**18)
    assert first is not None
    assert second is not None
    assert (first.rows.num_rows, second.rows.num_rows, first.emit_ns) == (1, 1, 10**18)
    assert driver.poll(10**18 + ms) is None
    assert driver.next_due_ns() == 10**18 + 2 * ms
    driver = opened(spec, world, (snapshot_of(driver, world),))
    late = []
    while (batch := driver.poll(10**18 + 100 * ms)) is not None:
        late.append(batch)
    assert sum(batch.rows.num_rows for batch in late) == 2 * 50
    assert late[0].emit_ns == 10**18 + 2 * ms


def test_only_wanted_columns_are_read_in_the_wanted_order_and_type(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"a": pa.array([1], pa.int32()), "b": [2], "c": pa.array(["x"]).dictionary_encode()}),
        tmp_path / "a.parquet",
    )
    wanted = pa.schema([("c", pa.string()), ("a", pa.int64())])
    batches = drained(opened(spec_of(ParquetFiles("src", str(tmp_path), wanted, None)), World()))
    assert batches[0].rows.schema == wanted
    assert rows_of(batches) == [{"c": "x", "a": 1}]
    assert ParquetFiles("src", str(tmp_path), None, None).schema.field("c").type == pa.string()


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "row_bytes"), [(200_000, 100), (2_000, 20_000)], ids=["narrow", "wide"])
def test_a_row_group_is_read_in_parts_of_bounded_size(tmp_path: Path, rows: int, row_bytes: int) -> None:
    text = os.urandom(row_bytes // 2).hex()
    column = [f"{n}{text[len(str(n)) :]}" for n in range(rows)]
    pq.write_table(
        pa.table({"s": column}), tmp_path / "a.parquet", compression="none", use_dictionary=False, write_batch_size=64
    )
    del column
    driver = opened(spec_of(ParquetFiles("src", str(tmp_path), None, None)), World())
    before, seen = pa.total_allocated_bytes(), 0
    while not driver.finished:
        batch = driver.poll(0)
        if batch is None:  # a large column chunk is decoded on a thread
            continue
        assert (
            pa.total_allocated_bytes() - before < rows * row_bytes * 7 // 10
        )  # two blocks of 8 MB and one page, of 20 or 40 MB
        assert batch.rows.column("s")[0].as_py() == f"{seen}{text[len(str(seen)) :]}"
        seen += len(batch)
    assert seen == rows


def test_without_a_schema_types_are_guessed_from_the_first_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,at,s\n1,2020-01-01 00:00:00,x\n")
    (tmp_path / "a.jsonl").write_text('{"n": 1, "at": "2020-01-01T00:00:00Z", "s": "x"}\n')
    assert CsvFiles("src", str(tmp_path), None, None).schema.types[0] == pa.int64()
    assert JsonlFiles("src", str(tmp_path), None, None).schema.names == ["n", "at", "s"]


def test_csv_may_have_a_byte_order_mark_other_delimiters_quotes_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufeffn;s\r\n1;"a;b"\r\n\r\n2;""\r\n3;\r\n'.encode())
    schema = pa.schema([("s", pa.string()), ("n", pa.int8())])
    source = CsvFiles("src", str(tmp_path), schema, None, CsvForm(";"))
    assert rows_of(drained(opened(spec_of(source), World()))) == [
        {"s": "a;b", "n": 1},
        {"s": "", "n": 2},
        {"s": None, "n": 3},
    ]


def test_empty_files_are_finished_without_rows(tmp_path: Path, format: str) -> None:
    write, make = FORMATS[format]
    write(tmp_path / f"a.{format}", table(0, 0))
    driver = opened(spec_of(make(str(tmp_path))), World())
    assert drained(driver) == []
    assert driver.records == 0


def test_a_line_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 100)
    (tmp_path / "a.jsonl").write_text(json.dumps({"s": "x" * 5_000}) + "\n" + json.dumps({"s": "y"}) + "\n")
    source = JsonlFiles("src", str(tmp_path), pa.schema([("s", pa.string())]), None)
    assert [len(row["s"]) for row in rows_of(drained(opened(spec_of(source), World())))] == [5_000, 1]


def test_rows_of_json_lack_fields_as_nulls(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"s": "x", "other": {}}\n')
    source = JsonlFiles("src", str(tmp_path), pa.schema([("n", pa.int64()), ("s", pa.string())]), None)
    assert rows_of(drained(opened(spec_of(source), World()))) == [{"n": 1, "s": None}, {"n": None, "s": "x"}]


@pytest.mark.slow
def test_files_in_s3_are_listed_and_read(tmp_path: Path, s3_url: Callable[[str], str], s3_endpoint: str) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=s3_endpoint)
    url = s3_url("in")
    bucket = url.split("/")[2]
    folder(tmp_path, "parquet", (10, 20))
    for path in tmp_path.iterdir():
        client.upload_file(str(path), bucket, f"in/{path.name}")
        client.upload_file(str(path), bucket, f"in/_staging/{path.name}")
    for paths in (url, url.replace("/in?", "/in/part-*.parquet?"), url.replace("/in?", "/in/part-1.parquet?")):
        rows = rows_of(drained(opened(spec_of(ParquetFiles("src", paths, SCHEMA, None)), World())))
        assert len(rows) == (20 if "part-1" in paths else 30)


# ---------------------------------------------------------------- bad input


def test_a_bucket_that_is_missing_is_named_before_the_job_starts(s3_endpoint: str) -> None:
    for path in ("no-such-bucket/in", "no-such-bucket", "no-such-bucket/in/*.jsonl"):
        with pytest.raises(InvalidJob, match="bucket 'no-such-bucket' does not exist: create it, or correct the URL"):
            Dataflow("away").read_jsonl("src", f"s3://{path}?endpoint={s3_endpoint}", schema={"n": int})


def test_a_missing_path_and_an_empty_folder_are_refused(tmp_path: Path, format: str) -> None:
    make = FORMATS[format][1]
    with pytest.raises(InvalidJob, match=r"source 'src': there is no file or folder .*/nowhere: check the path"):
        make(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidJob, match=rf"holds no file ending in \.{format.split('.')[0]}"):
        make(str(tmp_path))
    with pytest.raises(InvalidJob, match="no path is given"):
        make([])


def test_a_missing_column_is_named_with_its_file_before_the_job_starts(tmp_path: Path) -> None:
    folder(tmp_path, "parquet")
    pq.write_table(pa.table({"n": [1], "s": ["x"], "at": [EPOCH]}), tmp_path / "part-9.parquet")
    with pytest.raises(InvalidJob, match=r"part-9\.parquet: it has no column 'x' \(it has n, s, at\): correct schema="):
        spec_of(ParquetFiles("src", str(tmp_path), SCHEMA, None))
    (tmp_path / "a.csv").write_text("n,s\n1,x\n")
    with pytest.raises(InvalidJob, match=r"a\.csv: it has no column 'at' \(its header has n, s\)"):
        spec_of(CsvFiles("src", str(tmp_path), SCHEMA, None))


def test_a_column_of_another_type_is_named_with_both_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": ["1"]}), tmp_path / "a.parquet")
    source = ParquetFiles("src", str(tmp_path), pa.schema([("n", pa.int64())]), None)
    with pytest.raises(InvalidJob, match=r"a\.parquet: column 'n' is string, wanted is int64"):
        spec_of(source)


@pytest.mark.parametrize(
    ("format", "lines", "message"),
    [
        (
            "csv",
            ["n,s,at,x", "1,a,2020-01-01,0.5", "one,a,2020-01-01,0.5"],
            "column 'n' is int64, and 'one' is",
        ),
        (
            "csv",
            ["n,s,at,x", "1,a,2020-01-01,0.5", "1,a"],
            "a line does not fit: it has 2 values, .* has 4",
        ),
        ("jsonl", ['{"n": 1}', '{"n": "one"}'], "column 'n' is int64, and the text 'one' is not kept"),
        ("jsonl", ['{"n": 1}', '{"n": '], "it is not one JSON object.*if it is still being written"),
        ("jsonl", ['{"n": 1}', "[1]"], "it is an array, and each line has to be an object"),
    ],
)
def test_a_line_that_does_not_fit_is_reported_with_file_and_place(
    tmp_path: Path, format: str, lines: list[str], message: str
) -> None:
    (tmp_path / f"a.{format}").write_text("\n".join(lines) + "\n")
    spec = spec_of(FORMATS[format][1](str(tmp_path)))
    with pytest.raises(InvalidJob, match=rf"file .*a\.{format}, line [23]: {message}"):
        drained(opened(spec, World()))


def test_a_damaged_parquet_file_is_named_at_the_start_and_mid_way(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(0, 5_000), path, row_group_size=1_000, compression="zstd")
    spec = spec_of(ParquetFiles("src", str(path), SCHEMA, None))
    data = bytearray(path.read_bytes())
    middle = pq.ParquetFile(path).metadata.row_group(3).column(0)
    start = middle.dictionary_page_offset or middle.data_page_offset
    data[start : start + 60] = b"\xff" * 60
    path.write_bytes(data)
    driver = opened(spec, World())
    with pytest.raises(InvalidJob, match=r"a\.parquet, after row \d+: it is not \(or no longer\) valid Parquet"):
        drained(driver, 1_000)
    path.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(InvalidJob, match=r"a\.parquet: it is not .* valid Parquet.* Replace or remove the file"):
        ParquetFiles("src", str(path), None, None)


def test_a_file_that_vanished_or_changed_since_the_start_is_refused(tmp_path: Path, format: str) -> None:
    write, make = FORMATS[format]
    path = folder(tmp_path, format, (200,)) / f"part-0.{format}"
    spec, world = spec_of(make(str(tmp_path))), World()
    driver = opened(spec, world)
    driver.poll(0, 10)
    snapshot = snapshot_of(driver, world)
    write(path, table(0, 300))
    with pytest.raises(InvalidJob, match="files must not change while they are read"):
        drained(opened(spec, world, (snapshot,)))
    with pytest.raises(InvalidJob, match=r"bytes at the checkpoint and has \d+ now"):
        opened(spec_of(make(str(tmp_path))), world, (snapshot,))
    path.unlink()
    with pytest.raises(InvalidJob, match="is not there any more: bring it back"):
        drained(opened(spec, world, (snapshot,)))


def test_a_csv_without_header_or_rows_and_impossible_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(InvalidJob, match="has no header line"):
        spec_of(CsvFiles("src", str(tmp_path), SCHEMA, None))
    (tmp_path / "a.csv").write_text("a,a\n1,2\n")
    with pytest.raises(InvalidJob, match="column 'a' is in its header twice"):
        CsvFiles("src", str(tmp_path), None, None)
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(InvalidJob, match="no rows to guess types from: pass schema="):
        CsvFiles("src", str(tmp_path), None, None)
    with pytest.raises(InvalidJob, match="pace=0"):
        CsvFiles("src", str(tmp_path), SCHEMA, 0, CsvForm(","))
    with pytest.raises(InvalidJob, match="use one ASCII character"):
        CsvFiles("src", str(tmp_path), SCHEMA, None, CsvForm("::"))


def test_two_files_with_one_name_below_their_folders_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_parquet(tmp_path / name / "x.parquet", table(0, 1))
    with pytest.raises(InvalidJob, match="have the same name below their folders"):
        ParquetFiles("src", [str(tmp_path / "a"), str(tmp_path / "b")], SCHEMA, None)


def test_the_dataflow_language_reads_all_formats(tmp_path: Path) -> None:
    for format in FORMATS:
        folder(tmp_path, format)
    flow = Dataflow("job")
    bound = datetime.timedelta(seconds=3)
    options: dict[str, Any] = {"schema": SCHEMA, "event_time": "at", "max_out_of_orderness": bound, "pace": 100.0}
    flow.read_parquet("parquet", str(tmp_path), **options)
    flow.read_csv("csv", str(tmp_path), **options)
    flow.read_jsonl("jsonl", str(tmp_path), **options)
    with pytest.raises(InvalidJob, match="no column 'when'"):
        flow.read_csv("other", str(tmp_path), schema=SCHEMA, event_time="when")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')
    assert [file.id for file in find_files("~/in.jsonl", (".jsonl",), "src")] == ["in.jsonl"]


def test_a_json_column_that_changes_its_type_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "v": 1}\n{"n": 2, "v": 2}\n{"n": 3, "v": "three"}\n')
    with pytest.raises(
        InvalidJob, match=r"line 3: column 'v' is a number at first and a string here: .*types=.* or schema="
    ):
        Dataflow("typed").read_jsonl("src", str(tmp_path))


def test_text_that_is_not_utf8_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("n,name\n1,Anna\n2,René\n".encode("latin-1"))
    with pytest.raises(InvalidJob, match=r"line 3: 0xe9 in column 'name' is not UTF-8: pass encoding="):
        Dataflow("latin").read_csv("src", str(tmp_path))


@pytest.mark.slow
def test_times_that_do_not_fit_are_told_with_the_type_to_declare(tmp_path: Path) -> None:
    (tmp_path / "naive.csv").write_text("at\n2026-01-01T00:00:00\n")
    zoned = pa.schema([("at", pa.timestamp("us", "UTC"))])
    with pytest.raises(InvalidJob, match=r'no zone, .* declare it without, as "timestamp\[us\]" in schema='):
        drained(opened(spec_of(CsvFiles("src", str(tmp_path / "naive.csv"), zoned, None)), World()))
    line = '{{"at": "2026-01-01T00:00:0{}"}}\n'
    (tmp_path / "some.jsonl").write_text(line.format(1) * 20_000 + line.format("1.5"))
    guessed = JsonlFiles("src", str(tmp_path / "some.jsonl"), None, None)
    with pytest.raises(InvalidJob, match=r'line 20001: .* more digits .* declare .* as "timestamp\[ms\]" in schema='):
        drained(opened(spec_of(guessed), World()))


@pytest.mark.parametrize("schema", [None, pa.schema([("n", pa.int64())])])
@pytest.mark.parametrize("text", ['[{"n": 1}]', '\n [\n {"n": 1},\n {"n": 2}\n]\n'])
def test_a_json_array_is_told_from_lines(tmp_path: Path, schema: pa.Schema | None, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    def read() -> None:
        drained(opened(spec_of(JsonlFiles("src", str(tmp_path), schema, None)), World()))

    with pytest.raises(InvalidJob, match="is a JSON array, and each line has to be an object: convert the file"):
        read()


@pytest.mark.parametrize(
    ("files", "line", "type"),
    [
        (JsonlFiles, '{"a": 1, "b": [1, 2, 3]}', pa.month_day_nano_interval()),
        (CsvFiles, "a,b", pa.map_(pa.string(), pa.int64())),
        (CsvFiles, "a,b", pa.list_(pa.int64())),
    ],
)
def test_a_type_that_is_not_made_of_text_is_refused_with_its_column(
    tmp_path: Path, files: type[Any], line: str, type: pa.DataType
) -> None:
    (tmp_path / f"a.{files.kind.lower()}").write_text(line + "\n")
    with pytest.raises(InvalidJob, match=r"column 'b' is declared as .*, which is not read from (JSON|CSV): declare"):
        spec_of(files("src", str(tmp_path), pa.schema([("a", pa.int64()), ("b", type)]), None))


def test_a_name_that_is_not_utf8_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.csv")).write_text("n\n1\n")
    with pytest.raises(InvalidJob, match=r"the name of file .*/caf\\xe9.csv is not UTF-8: rename it"):
        Dataflow("named").read_csv("src", str(tmp_path))
