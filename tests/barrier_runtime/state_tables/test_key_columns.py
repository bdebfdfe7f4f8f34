"""Keys of all types in state tables, in differences and in replays: as in rows, and as people write them."""

import datetime as dt
import json
import re
import shlex
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, JobFailed, ProcessContext, ValueState, count, open_checkpoint, sum_
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state_tables.differences import diff
from barrier_runtime.state_tables.wanted_keys import key_fields
from barrier_runtime.tools.replaying import replayed
from barrier_runtime.tools.state import show

NAME = "key: of all, kinds"
BERLIN = ZoneInfo("Europe/Berlin")
# type: (Arrow type, two keys, text of the first key)
KINDS: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "date": (pa.date32(), [dt.date(2026, 1, 2), dt.date(1960, 5, 6)], "2026-01-02"),
    "time": (pa.timestamp("ms"), [dt.datetime(2026, 1, 2, 3), dt.datetime(1960, 5, 6)], "2026-01-02T03:00:00"),
    "zoned": (
        pa.timestamp("us", "Europe/Berlin"),
        [dt.datetime(2026, 1, 2, 3, tzinfo=BERLIN), dt.datetime(2026, 7, 2, 3, 0, 0, 5, tzinfo=BERLIN)],
        "2026-01-02T03:00:00+01:00",
    ),
    "bytes": (pa.binary(), [b"\x00=", b"b"], "003d"),
    "bool": (pa.bool_(), [True, False], "true"),
    "float": (pa.float32(), [1.5, -2.25], "1.5"),
    "small float": (pa.float32(), [0.5, 0.10000000149011612], "0.5"),
    "unsigned": (pa.uint64(), [2**64 - 1, 3], str(2**64 - 1)),
    "text": (pa.string(), ["null", None], "null"),
    "null": (pa.string(), [None, "null"], "is null"),
}


QUICK = ("zoned", "bytes", "small float", "null")  # written as they are not stored
EACH_KIND = [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS]


class Sum:
    total = ValueState(int, default=0)

    def process(self, key: Any, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.total.value += row["n"]
        if row["n"] > 50:
            raise ValueError("too much\nby far")
        return [{"n": row["n"]}]


def flow(kind: str, rows: list[int]) -> Dataflow:
    """Row n has the key n % 2."""
    of_type, keys, _ = KINDS[kind]
    flow = Dataflow("keys")
    schema = pa.schema([(NAME, of_type), ("n", pa.int64())])
    made = [{NAME: keys[n % 2], "n": n} for n in rows]
    keyed = flow.from_iterator("in", lambda index, of: iter(made), schema=schema, splits=1).key_by(NAME)
    keyed.process("sum", Sum, schema={"n": int}).sink("out", CollectSink())
    keyed.aggregate("running", number=count(), most=sum_("n")).sink("all", CollectSink())
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("kind", EACH_KIND)
def test_key_columns_of_every_type_are_as_in_rows_and_can_be_asked_for(kind: str, tmp_path: Path) -> None:
    of_type, keys, written = KINDS[kind]
    for name, rows in (("one", [0, 1, 2]), ("other", [0, 1, 2, 4])):
        flow(kind, rows).run_local(checkpoints=tmp_path / name, parallelism=2)
    with open_checkpoint(str(tmp_path / "one"), "keys") as one, open_checkpoint(str(tmp_path / "other"), "keys") as two:
        whole = two.table("sum", "total").read_all()
        assert whole.schema.field(NAME).type == of_type
        totals = dict(zip(whole.column(NAME).to_pylist(), whole.column("value").to_pylist(), strict=True))
        assert totals == {keys[0]: 6, keys[1]: 1}
        sums = two.table("running", "running").read_all()
        assert set(sums.column(NAME).to_pylist()) == set(keys)
        for key, rows in zip(keys, (3, 1), strict=True):
            assert two.table("sum", "total", {NAME: key}).read_all().column("value").to_pylist() == [totals[key]]
            assert two.table("running", "running", {NAME: key}).read_all().column("rows").to_pylist() == [rows]
            assert two.count("sum", "total", {NAME: key}) == two.count("running", "running", {NAME: key}) == 1
        changed = list(diff(one, two))
    assert {each.operator for each in changed} == {"sum", "running"}
    assert [each.key for each in changed] == [{NAME: keys[0]}] * len(changed)
    asked = f"{NAME} {written}" if written == "is null" else f"{NAME}={written}"
    for state in ("sum.total", "running.running"):
        (line,) = show(str(tmp_path / "other"), "keys", None, state, (asked,), 9)[0].splitlines()
        assert json.loads(line)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EACH_KIND)
def test_the_command_of_a_failure_report_meets_the_row_of_a_key_of_any_type(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = flow(kind, [0, 1, 2, 3, 52])
    with pytest.raises(JobFailed, match="barrier-runtime replay") as failed:
        bad.run_local(checkpoints=tmp_path, parallelism=1, restart="none")
    (told,) = (line for line in str(failed.value).splitlines() if "barrier-runtime replay" in line)
    words = shlex.split(told.partition("barrier-runtime ")[2])
    asked = words[words.index("--key") + 1]
    assert replayed(bad, "sum", [asked], "0", None, str(tmp_path), row=None, stop=False, redact=()) == 1
    shown = capsys.readouterr().out
    assert [line.partition(":")[0] for line in shown.splitlines() if line.startswith("row ")] == [
        "row 0",
        "row 1",
        "row 2",
    ]
    assert "  state total: 2 -> 54\n" in shown
    assert re.search(r"\n  raised: Sum.process\(\) of operator 'sum', subtask \d, raised ValueError: too much\n", shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value", "what"),
    [
        ("date", "yesterday", "is date32[day], and 'yesterday' is not one: write a date as 2026-11-30"),
        ("zoned", "2026-01-02T03:00:00", "with a zone, such as Z"),
        ("unsigned", -1, "is uint64, and -1 is not one"),
        ("bool", "perhaps", "is bool, and 'perhaps' is not one"),
    ],
)
def test_a_value_that_the_key_cannot_have_is_refused(kind: str, value: Any, what: str, tmp_path: Path) -> None:
    flow(kind, [0, 1]).run_local(checkpoints=tmp_path, parallelism=1)
    with open_checkpoint(str(tmp_path), "keys") as stored, pytest.raises(InvalidJob) as refused:
        stored.table("sum", "total", {NAME: value})
    assert what in str(refused.value)
    assert repr(NAME) in str(refused.value)


def test_bytes_are_written_in_hexadecimal(tmp_path: Path) -> None:
    flow("bytes", [0, 1]).run_local(checkpoints=tmp_path, parallelism=1)
    with pytest.raises(InvalidJob, match="'xyz' is not binary: write bytes in hexadecimal"):
        show(str(tmp_path), "keys", None, "sum.total", (f"{NAME}=xyz",), 9)


def test_names_and_types_of_a_key_are_told_apart_whatever_they_have_in_them() -> None:
    schema = pa.schema(
        [("a: b, c", pa.int8()), ("d", pa.timestamp("us", "UTC")), ("e, f: g", pa.date32()), ("h", pa.large_string())]
    )
    assert key_fields(", ".join(f"{field.name}: {field.type}" for field in schema)) == [
        (field.name, field.type) for field in schema
    ]
    assert key_fields("") == []
    assert key_fields("a: int64, b: something") == [("a", pa.int64()), ("b", None)]
