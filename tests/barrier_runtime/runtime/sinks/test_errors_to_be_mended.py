"""Jobs whose sink or source meets an error that an operator must fix: the job fails at once, or keeps its decided
rows.
"""

import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, JobFailed, TwoPhaseCommitSink
from barrier_runtime.connectors.source import Polled, Split


class OneCallFails(TwoPhaseCommitSink):
    """Sink that raises in the call `failing` while `broken` is set.

    `rows` contains the committed rows, and -1 for each `open`. The job's copies of the sink share `rows` and `broken`.
    """

    rows: ClassVar[list[int]] = []
    broken = threading.Event()

    def __init__(self, failing: str, error: Callable[[], Exception]) -> None:
        self.failing, self.error = failing, error
        self.rows.clear()
        self.broken.set()

    def _may_fail(self, call: str) -> None:
        if call == self.failing and self.broken.is_set():
            raise self.error()

    def open(self, context: Any) -> None:
        self.rows.append(-1)
        self._may_fail("open")

    def begin_transaction(self) -> list[int]:
        return []

    def write(self, transaction: list[int], rows: pa.RecordBatch) -> None:
        self._may_fail("write")
        transaction += rows.column("x").to_pylist()

    def pre_commit(self, transaction: list[int], checkpoint: int) -> bytes | None:
        self._may_fail("pre_commit")
        return ",".join(map(str, transaction)).encode() if transaction else None

    def commit(self, committable: bytes) -> None:
        self._may_fail("commit")
        self.rows += [row for row in map(int, committable.split(b",")) if row not in self.rows]

    def abort(self, committable: bytes) -> None:
        pass


def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
    return ({"x": x} for x in range(3))


ERRORS = (
    lambda: pa.ArrowInvalid("Invalid UTF8 payload"),
    lambda: ModuleNotFoundError("No module named 'snappy'"),
    lambda: OSError(36, "File name too long"),
)


def flow_into(sink: TwoPhaseCommitSink) -> Dataflow:
    flow = Dataflow("mended")
    flow.from_iterator("rows", numbers, schema={"x": int}, splits=1).sink("out", sink)
    return flow


@pytest.mark.parametrize("call", ["open", "write", "pre_commit"])
@pytest.mark.parametrize("error", ERRORS, ids=["encoder", "import", "name"])
def test_a_sink_that_a_person_must_mend_ends_the_job_at_its_first_try(
    call: str, error: Callable[[], Exception]
) -> None:
    with pytest.raises(JobFailed) as failed:
        flow_into(OneCallFails(call, error)).run_local(parallelism=1)
    text = str(failed.value)
    assert OneCallFails.rows == [-1], "opened once, nothing committed"
    assert "sink 'out' (OneCallFails), subtask 0" in text
    assert "self._may_fail" in "".join(traceback.format_exception(failed.value)), "the user's own line"
    assert str(error()).split("]")[-1].strip() in text


@pytest.mark.slow
def test_decided_rows_are_kept_until_a_person_has_mended_the_target(tmp_path: Path) -> None:
    sink = OneCallFails("commit", lambda: PermissionError(13, "Permission denied"))
    job = flow_into(sink).start_local(parallelism=1, checkpoint_interval=0.05, checkpoints=str(tmp_path))
    while not (troubles := job.status().commits.troubles):
        assert not job.done
    assert "sink 'out' (OneCallFails), subtask 0: decided rows cannot be committed" in troubles[0].error
    assert "The decided rows are kept, and are committed as soon as the cause is mended" in troubles[0].error
    while job.status().condition != "WAITING_SINK":
        assert not job.done
    OneCallFails.broken.clear()
    job.wait(60)
    assert OneCallFails.rows == [-1, 0, 1, 2]


class Unreadable:
    """User-defined source whose library finds the second batch damaged."""

    exactly_once = True
    schema = pa.schema({"x": pa.int64()})

    opened: ClassVar[list[int]] = []
    at = 0

    def splits(self, parallelism: int) -> list[Any]:
        return [Split("only")]

    def reader(self, split: Any) -> "Unreadable":
        self.opened.append(1)
        return self

    finished = False

    def next_due_ns(self) -> int | None:
        return None

    def poll(self, max_rows: int, now_ns: int) -> Any:
        self.at += 1
        if self.at == 2:
            raise pa.ArrowInvalid("damaged block")
        return Polled(pa.record_batch({"x": pa.array([self.at], pa.int64())}), now_ns)

    def position(self) -> bytes:
        return b"0"

    def seek(self, position: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_source_whose_library_cannot_read_its_data_ends_the_job_at_once() -> None:
    flow = Dataflow("unreadable")
    flow.source("rows", Unreadable()).sink("out", CollectSink())
    with pytest.raises(JobFailed) as failed:
        flow.run_local(parallelism=1)
    assert "source 'rows' (Unreadable), subtask 0, split 'only', after row 1: damaged block (ArrowInvalid)" in str(
        failed.value
    )
    assert Unreadable.opened == [1]
