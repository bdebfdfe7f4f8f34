"""`types=` declares some columns of CSV and JSON files, and the types of the others are guessed."""

import bz2
import datetime
import gzip
import logging
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, CsvSource, Dataflow, InvalidJob, JobFailed, JsonlSource

UTC = datetime.timezone.utc
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDERS = {
    "csv": "at,zip,price,paid,n\n2026-01-01T12:00:00Z,01067,1.10,True,1\n2026-01-01T12:00:00.5Z,01069,,0,2\n",
    "jsonl": '{"at": "2026-01-01T12:00:00", "zip": "01067", "price": 1.10, "paid": true, "n": 1}\n'
    '{"at": "2026-01-01T13:00:00.5+01:00", "zip": "01069", "price": null, "paid": false, "n": 2}\n',
}
SOURCES = {"csv": CsvSource, "jsonl": JsonlSource}
PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
TYPES = {"at": datetime.datetime, "zip": str, "price": "decimal(10, 2)", "paid": bool}
READ = [
    {"at": NOON, "zip": "01067", "price": Decimal("1.10"), "paid": True, "n": 1},
    {"at": NOON.replace(microsecond=500_000), "zip": "01069", "price": None, "paid": False, "n": 2},
]


@dataclass
class Known:
    at: datetime.datetime
    zip: str


def read(source: CsvSource | JsonlSource, **options: Any) -> list[dict[str, Any]]:
    flow, rows = Dataflow("typed"), CollectSink()
    flow.source("in", source, **options).sink("out", rows)
    flow.run_local()
    return rows.rows()


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("form", SOURCES)
def test_declared_columns_have_their_type_and_the_others_a_guess(tmp_path: Path, form: str, packed: str) -> None:
    (tmp_path / f"a.{form}{packed}").write_bytes(PACKED[packed](ORDERS[form].encode()))
    source = SOURCES[form](str(tmp_path), types=TYPES)
    assert sorted(read(source, event_time="at"), key=lambda row: row["n"]) == READ
    schema = Dataflow("typed").source("in", source).schema
    assert schema is not None
    assert [str(kind) for kind in schema.types] == [
        "timestamp[us, tz=UTC]",
        "string",
        "decimal128(10, 2)",
        "bool",
        "int64",
    ]


@pytest.mark.parametrize("form", SOURCES)
@pytest.mark.parametrize("types", [Known, "at TIMESTAMP, zip STRING"])
def test_types_are_written_as_a_schema_is(tmp_path: Path, form: str, types: Any) -> None:
    (tmp_path / f"a.{form}").write_text(ORDERS[form])
    rows = read(SOURCES[form](str(tmp_path), types=types))
    assert [(row["at"], row["zip"]) for row in rows] == [(row["at"], row["zip"]) for row in READ]


@pytest.mark.parametrize("form", SOURCES)
def test_columns_of_folders_are_declared_too(tmp_path: Path, form: str) -> None:
    for month, file in (("01", "a"), ("x", "b")):
        folder = tmp_path / f"month={month}"
        folder.mkdir()
        (folder / f"{file}.{form}").write_text(ORDERS[form])
    rows = read(SOURCES[form](str(tmp_path), types={**TYPES, "month": str}))
    assert sorted((row["month"], row["n"]) for row in rows) == [("01", 1), ("01", 2), ("x", 1), ("x", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("form", SOURCES)
def test_guessed_columns_stay_strict_beside_declared_columns(tmp_path: Path, form: str) -> None:
    first, later = {
        "csv": ("at,n,ok\n" + "2026-01-01T12:00:00Z,1,true\n" * 60_000, "2026-01-01T12:00:00Z,007,true\n"),
        "jsonl": (
            '{"at": "2026-01-01T12:00:00Z", "n": "2026-01-01T12:00:00Z"}\n' * 30_000,
            '{"at": "2026-01-01T12:00:00", "n": "2026-01-01T12:00:00"}\n',
        ),
    }[form]
    (tmp_path / f"a.{form}").write_text(first + later)
    with pytest.raises(JobFailed, match=r"column 'n' is .* guessed from the first.*types="):
        read(SOURCES[form](str(tmp_path), types={"at": datetime.datetime}))


@pytest.mark.slow
def test_declared_json_field_may_appear_in_a_later_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 60_000 + '{"n": 2, "coupon": "x"}\n')
    with caplog.at_level(logging.WARNING):
        rows = read(JsonlSource(str(tmp_path), types={"coupon": str}))
    assert rows[0] == {"n": 1, "coupon": None}
    assert rows[-1] == {"n": 2, "coupon": "x"}
    assert "column 'coupon' of types= is not in the first rows: it is null until it appears" in caplog.text


def test_misspelt_columns_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text(ORDERS["csv"])
    (tmp_path / "a.jsonl").write_text(ORDERS["jsonl"])
    with pytest.raises(InvalidJob, match=r"types=: there is no column 'prise' \(did you mean 'price'\?\)"):
        Dataflow("typed").read_csv("in", str(tmp_path), types={"prise": float})
    Dataflow("typed").read_jsonl("in", str(tmp_path), types={"prise": float})
    assert "column 'prise' of types= is not in the first rows (did you mean 'price'?)" in caplog.text


def test_declared_json_columns_are_not_guessed_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"v": 1, "big": 123456789012345678901, "m": {"a": 1}, "none": null}\n'
        '{"v": "2.5", "big": 1, "m": {"b": 2}, "none": null}\n'
    )
    types = {"v": "decimal(10, 2)", "big": "decimal(38, 0)", "m": dict[str, int], "none": str}
    rows = read(JsonlSource(str(tmp_path), types=types))
    assert [row["v"] for row in rows] == [Decimal(1), Decimal("2.5")]
    assert [row["big"] for row in rows] == [123456789012345678901, 1]
    assert [dict(row["m"]) for row in rows] == [{"a": 1}, {"b": 2}]
    assert [row["none"] for row in rows] == [None, None]


@pytest.mark.parametrize("form", SOURCES)
def test_types_beside_a_schema_are_refused(tmp_path: Path, form: str) -> None:
    (tmp_path / f"a.{form}").write_text(ORDERS[form])
    with pytest.raises(InvalidJob, match=r"schema= says the types of all columns, and types= of some.*leave one out"):
        Dataflow("typed").source("in", SOURCES[form](str(tmp_path), schema={"n": int}, types={"n": int}))


def test_text_as_event_time_is_answered_with_types(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"at": "noon"}\n')
    with pytest.raises(InvalidJob, match=r"'at' has type string: .*types=\{'at': datetime\} of CSV and JSON files"):
        Dataflow("typed").read_jsonl("in", str(tmp_path), event_time="at")


@pytest.mark.parametrize("form", SOURCES)
def test_unknown_types_name_the_argument(tmp_path: Path, form: str) -> None:
    (tmp_path / f"a.{form}").write_text(ORDERS[form])
    with pytest.raises(InvalidJob, match=r"types= is int: pass"):
        Dataflow("typed").source("in", SOURCES[form](str(tmp_path), types=3))
