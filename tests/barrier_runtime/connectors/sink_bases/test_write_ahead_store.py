"""Objects of a write-ahead sink in the job's store as other tools see them: keys, fsck, deletion of a job."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.sink_bases.write_ahead import WriteAheadSink
from barrier_runtime.connectors.sink_bases.write_ahead_committable import DeliveryToken
from barrier_runtime.coordinator.checkpoints.retention import Retention, RetentionVerdict, discarded
from barrier_runtime.coordinator.maintenance.fsck_store import check_store
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.paths import Paths

pytestmark = pytest.mark.usefixtures("both_ways")

PATHS = Paths("job")


class FolderSink(WriteAheadSink):
    """A JSON file per delivery, named by the token, so a repeated delivery replaces the file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        name = self.folder / f"{token.text.replace('/', '_')}.json"
        temporary = name.with_suffix(f".{token.token}")
        temporary.write_text(json.dumps([row for batch in batches for row in batch.to_pylist()]))
        os.replace(temporary, name)


def numbers_in(folder: Path) -> list[int]:
    return sorted(row["n"] for path in folder.glob("*.json") for row in json.loads(path.read_text()))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Folder with the checkpoints of an ended job."""
    (tmp_path / "out").mkdir()
    flow = Dataflow("job")
    rows = flow.from_iterator("numbers", lambda index, of: [{"n": n} for n in range(index, 100, of)], schema={"n": int})
    rows.sink("out", FolderSink(tmp_path / "out"))
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.1)
    assert numbers_in(tmp_path / "out") == list(range(100))
    return tmp_path / "checkpoints"


def test_a_job_that_ended_leaves_no_rows_and_fsck_finds_nothing_unknown(ran: Path) -> None:
    (checked,) = check_store(LocalStore(ran), None, 0, 2**60)
    assert checked.report.damage == ()
    assert [each for each in checked.report.unreferenced if each.state == "unknown"] == []
    assert list((ran / "job" / "write-ahead").glob("*/staged/*/*")) == []
    assert list((ran / "job" / "write-ahead").glob("*/delivered/*/*/*")) != []


def test_fsck_explains_staged_rows_of_older_generations_and_calls_none_orphans(ran: Path) -> None:
    store = LocalStore(ran)
    key = PATHS.staged_rows("out", 0, 1, 3, "name")
    store.put(key, b"rows")
    (checked,) = check_store(store, None, 0, 2**60)
    (found,) = [each for each in checked.report.unreferenced if each.key == key]
    assert found.state == "kept"
    assert "rows staged by generation 0, subtask 1, of a write-ahead sink" in found.reason
    assert key not in checked.sweep.keys


def test_only_the_names_of_staged_rows_and_notes_are_taken_for_such() -> None:
    staged = PATHS.staged_rows("out", 7, 1, 3, "abc")
    assert staged == "job/write-ahead/out/staged/7/1-3-abc"
    assert PATHS.staged_rows_origin(staged) == (7, 1)
    note = PATHS.delivery_note("out", "line", 1, 9, 7)
    assert note == "job/write-ahead/out/delivered/line/1/00000000000000000009-7"
    assert PATHS.delivery_of(note) == (9, 7)
    for other in (staged + "/x", staged.replace("job/", "other/", 1), note + "0x", "job/write-ahead/out/staged/7"):
        assert PATHS.staged_rows_origin(other) is None
        assert PATHS.delivery_of(other) is None
    for wrong in ("", "../x", "a/b"):
        with pytest.raises(InvalidJob):
            PATHS.staged_rows("out", 7, 1, 3, wrong)
        with pytest.raises(InvalidJob):
            PATHS.delivery_note("out", wrong, 1, 9, 7)


def test_a_sweep_leaves_staged_rows_alone_and_the_deleting_of_a_job_takes_them() -> None:
    """I7: no manifest names the rows, yet they may be decided. Objects of a later run and objects of unknown owners
    stay.
    """
    keys = [
        PATHS.staged_rows("out", 3, 0, 1, "a"),
        PATHS.delivery_note("out", "line", 0, 5, 3),
        PATHS.staged_rows("out", 4, 0, 1, "b"),
        PATHS.delivery_note("out", "line", 0, 6, 4),
        PATHS.delivery_note("out", "line", 0, 1, 0),
    ]
    objects = [ObjectInfo(key, 1, 0) for key in keys]
    verdicts = [verdict for _, verdict in Retention(1).classify(PATHS, objects, 9, 2**60)]
    assert verdicts == [RetentionVerdict.NOT_OURS] * 5
    assert Retention(1).sweep(PATHS, objects, 9, 2**60).keys == ()
    assert sorted(discarded(PATHS, objects, 3).keys) == sorted(keys[:2])
