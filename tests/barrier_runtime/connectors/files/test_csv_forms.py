"""Common forms of CSV: Latin-1, German decimals, leading zeros, a byte-order mark."""

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob
from barrier_runtime.connectors.files.source.csv_rows import CsvForm, CsvRows
from barrier_runtime.data.values.text_columns import LineError


def rows_of_csv(path: Path, **options: Any) -> list[dict[str, Any]]:
    flow, out = Dataflow("csv"), CollectSink()
    flow.read_csv("in", str(path), **options).sink("out", out)
    flow.run_local(parallelism=1)
    return out.rows()


def test_latin_1_and_german_decimals_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("Straße;Preis\nMüllerstraße;1,5\nÖrtchen;-2,25\n".encode("latin-1"))
    rows = rows_of_csv(path, delimiter=";", encoding="latin-1", decimal_point=",")
    assert rows == [{"Straße": "Müllerstraße", "Preis": 1.5}, {"Straße": "Örtchen", "Preis": -2.25}]


def test_texts_with_a_point_are_no_numbers_where_a_comma_is_before_the_decimals(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("version;mixed;price\n1.5;1,5;1,5\n2.25;1.5;0\n")
    rows = rows_of_csv(path, delimiter=";", decimal_point=",")
    assert rows == [{"version": "1.5", "mixed": "1,5", "price": 1.5}, {"version": "2.25", "mixed": "1.5", "price": 0.0}]


def test_latin_1_without_its_name_is_told_with_the_option(tmp_path: Path) -> None:
    for text in ("Straße\nx\n", "name\nMüller\n"):
        path = tmp_path / "a.csv"
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(InvalidJob, match=r'pass encoding= \(such as "latin-1"\)'):
            Dataflow("csv").read_csv("in", str(path))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint8()], ids=str)
@pytest.mark.parametrize("columns", [2, 20])
@pytest.mark.parametrize("text", ["0xFF", "0Xff", "0xFFFFFFFFFFFFFFFF", "0x7F", "-5", "7", "x"])
def test_hexadecimal_numbers_are_never_other_numbers(kind: pa.DataType, columns: int, text: str) -> None:
    names = [f"n{at}" for at in range(columns)]
    rows = CsvRows(",".join(names).encode() + b"\n", "file", pa.schema([(name, kind) for name in names]), CsvForm())
    line = ",".join([text, *["-1" if pa.types.is_signed_integer(kind) else "1"] * (columns - 1)])
    try:
        value = rows(f"{line}\n".encode())[0][0].as_py()
    except LineError:
        assert text in ("0xFF", "0Xff", "0xFFFFFFFFFFFFFFFF", "-5", "x")
    else:
        assert value == int(text, 0)


def test_a_wide_file_is_opened_without_a_parse_per_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop opens files: 200 parses would hold it for 50 ms."""
    parses, read_csv = itertools.count(), pacsv.read_csv

    def counted(*given: Any, **options: Any) -> Any:
        next(parses)
        return read_csv(*given, **options)

    monkeypatch.setattr(pacsv, "read_csv", counted)
    names = [f"n{at}" for at in range(200)]
    CsvRows(",".join(names).encode() + b"\n", "file", pa.schema([(name, pa.int64()) for name in names]), CsvForm())
    assert next(parses) <= 1


@pytest.mark.slow
def test_numbers_with_leading_zeros_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufeffplz,n,x,zero\n01234,10,0.5,0\n99999,20,10.05,0\n")
    stream = Dataflow("csv").read_csv("in", str(path))
    assert stream.schema == pa.schema(
        [("plz", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("zero", pa.int64())]
    )
    assert [row["plz"] for row in rows_of_csv(path)] == ["01234", "99999"]
    assert [row["plz"] for row in rows_of_csv(path, schema={"plz": int})] == [1234, 99999]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoding": "utf-16"}, "in which ASCII is as it is"),
        ({"encoding": "klingon"}, "in which ASCII is as it is"),
        ({"decimal_point": ","}, "are both ','"),
        ({"decimal_point": ""}, "decimal_point='': use one ASCII character"),
        ({"delimiter": "::"}, "delimiter='::': use one ASCII character"),
    ],
)
def test_a_form_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(InvalidJob, match=said):
        Dataflow("csv").read_csv("in", str(tmp_path / "a.csv"), **options)
