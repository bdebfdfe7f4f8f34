"""A program without a former sink, with `allow_non_restored`: decided rows are committed, not dropped as state."""

import json
from pathlib import Path
from typing import ClassVar

import pytest

from barrier_runtime import CollectSink, Dataflow, JsonlSink
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.runtime.sinks.pending_transactions import read_pending
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_existing_store

ROWS = 60_000


class Stuck(JsonlSink):
    """Sink whose target is unreachable for the whole job."""

    def commit(self, committable: bytes) -> None:
        raise OSError("the target is down")


class Own(Stuck):
    kind: ClassVar[str] = ""


def decide_without_a_commit(folder: Path, sink: type[JsonlSink]) -> int:
    """Returns the number of rows that the last checkpoint decided; none of them is visible."""
    log = folder / "ck" / "job" / "log"

    def until_three_checkpoints(row: dict[str, int]) -> dict[str, int]:
        if row["value"] % 50 == 0 and log.exists() and len(list(log.iterdir())) > 3:
            raise ValueError("enough")
        return {"value": row["value"]}

    flow = Dataflow("job")
    rows = flow.rate("numbers", 2_000, ROWS, splits=1)
    rows.map(until_three_checkpoints, schema={"value": "int64"}).sink("old", sink(str(folder / "out")))
    with pytest.raises(JobFailed, match="enough"):
        flow.run_local(checkpoints=str(folder / "ck"), checkpoint_interval=0.05, restart="none")
    [pending] = read_pending(open_existing_store(str(folder / "ck")), "job").sinks
    assert pending.entries
    assert not list((folder / "out").glob("part-*"))
    return len(pending.entries)


def changed(folder: Path) -> list[int]:
    flow, sink = Dataflow("job"), CollectSink()
    flow.rate("numbers", 1_000_000, ROWS, splits=1).sink("new", sink)
    flow.run_local(checkpoints=str(folder / "ck"), checkpoint_interval=0.05, allow_non_restored=True)
    return sorted(row["value"] for row in sink.rows())


@pytest.mark.slow
def test_what_was_decided_of_a_removed_sink_is_made_visible_before_it_is_forgotten(tmp_path: Path) -> None:
    """T4, I5: rows before the checkpoint belong to the old sink, rows after it to the new sink, and none is lost."""
    decide_without_a_commit(tmp_path, Stuck)
    new = changed(tmp_path)
    lines = (line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines())
    old = sorted(json.loads(line)["value"] for line in lines)
    assert len(old) > 0
    assert old + new == list(range(ROWS))


def test_uncommittable_sinks_are_refused_with_name_and_number_of_transactions(tmp_path: Path) -> None:
    """T4: we cannot make a sink of the user's own without the program."""
    count = decide_without_a_commit(tmp_path, Own)
    with pytest.raises(InvalidJob, match=rf"no longer has sink 'old' .* to be visible: {count}\. .*Keep the sink"):
        changed(tmp_path)
    assert read_pending(open_existing_store(str(tmp_path / "ck")), "job").sinks[0].entries, "the job is as it was"
