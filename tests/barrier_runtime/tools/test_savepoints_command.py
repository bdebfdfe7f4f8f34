"""`barrier-runtime savepoints`: output for a folder of savepoints, and deletions."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, ValueState, write_savepoint
from barrier_runtime.coordinator.log.savepoint import SAVEPOINT_FILE
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.tools.savepoints import delete, describe, listing


def counted(name: str) -> Dataflow:
    flow = Dataflow(name)
    keyed = flow.from_iterator("in", lambda index, of: iter(()), schema={"user": str}, splits=1).key_by("user")
    keyed.process("seen", lambda key, row, ctx: [], schema={"user": str}, state={"n": ValueState(int)}).sink(
        "out", CollectSink()
    )
    return flow


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    rows = pa.table({"user": ["ann", "bob"], "value": [1, 2]})
    for folder in ("late", "early"):
        write_savepoint(str(tmp_path / folder), flow=counted(f"job-{folder}"), states={("seen", "n"): rows})
    (tmp_path / "checkpoints" / "log").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"no folder")
    return tmp_path


def test_a_line_for_each_savepoint_and_for_what_cannot_be_read(archive: Path) -> None:
    (archive / "torn").mkdir()
    (archive / "torn" / SAVEPOINT_FILE).write_bytes((archive / "late" / SAVEPOINT_FILE).read_bytes()[:40])
    first, second, third = listing(str(archive)).splitlines()
    assert re.fullmatch(r"late  20\S+, checkpoint \d+ of job job-late, [\d,]+ bytes", first)
    assert re.fullmatch(r"early  20\S+, checkpoint \d+ of job job-early, [\d,]+ bytes", second), "it was written later"
    assert third.startswith(f"torn  cannot be read: savepoint torn/{SAVEPOINT_FILE} is not readable")


def test_a_folder_without_savepoints_says_so(tmp_path: Path) -> None:
    assert listing(str(tmp_path)) == f"there are no savepoints in the folders right below {tmp_path}"
    with pytest.raises(InvalidJob, match="gone"):
        listing(str(tmp_path / "gone"))


def test_a_savepoint_is_described_and_deleted_when_one_is_sure(archive: Path) -> None:
    page, whole = describe(str(archive / "late"))
    assert whole
    assert re.search(r"of job job-late\b.*operators with state: seen$", page, re.MULTILINE | re.DOTALL)
    with pytest.raises(InvalidJob, match=r"of job job-late .* for good: add --yes"):
        delete(str(archive / "late"), sure=False)
    assert delete(str(archive / "late"), sure=True).startswith(f"deleted {archive / 'late'}: ")
    assert listing(str(archive)).startswith("early  ")
