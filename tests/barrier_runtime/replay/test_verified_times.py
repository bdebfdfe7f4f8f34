"""State that expires by a clock makes no difference between a job and its replay."""

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import TTL, Dataflow, JsonlSink, ListState, MapState, ValueState
from barrier_runtime.replay import verify
from tests.barrier_runtime.replay.two_checkpoints import ROWS, TwoCheckpoints, two_checkpoints, until_covered

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
SECOND = dt.timedelta(seconds=1)
SHORT = TTL(30 * SECOND)


class Recent:
    last = ValueState(int, ttl=SHORT)
    kept = ListState(int, ttl=SHORT)
    seen = MapState(int, int, ttl=SHORT)

    def process(self, group: int, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.last.value = row["n"]
        self.kept.append(row["n"])
        self.seen[row["n"] % 7] = row["n"]
        yield {"group": group, "kept": len(self.kept)}


class Later(Recent):
    """State of the job with entries that the replay never had."""

    def process(self, group: int, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.seen[time.time_ns() % 1_000_000] = row["n"]
        yield {"group": group, "kept": 1}


def job_of(kind: str, folder: Path, make: Any = Recent) -> TwoCheckpoints:
    """A job with rows of five groups per second, in order; ten rows share an id, at most five seconds apart."""

    def rows(index: int, of: int) -> Iterator[dict[str, Any]]:
        for at in range(0, len(ROWS), 20):
            until_covered(at)
            for row in ROWS[at : at + 20]:
                yield {"group": row["n"] // 20, "id": row["n"] // 10, "n": row["n"], "at": BEGIN + row["n"] * SECOND}
            time.sleep(0.02)

    def flow() -> Dataflow:
        made = Dataflow("replayed")
        schema = {"group": int, "id": int, "n": int, "at": dt.datetime}
        read = made.from_iterator("rows", rows, schema=schema, splits=1, event_time="at")
        if kind == "ttl":
            by_group = read.key_by("group")
            found = by_group.process("recent", make, schema={"group": int, "kept": int}, event_time="at")
        else:
            within = None if kind == "every id" else 3600 * SECOND
            found = read.deduplicate("once", "id", within=within)
        found.sink("out", JsonlSink(str(folder / "out")))
        return made

    return two_checkpoints(str(folder / "ckpt"), flow)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ttl", "ids", "every id"])
def test_when_something_was_deleted_or_seen_is_no_difference(kind: str, tmp_path: Path) -> None:
    job = job_of(kind, tmp_path)
    for after, until in ((job.before, job.until), (0, job.until)):
        found = verify(job.flow, after=after, until=until, checkpoints=job.folder)
        assert found.same, found.differences
        assert found.read_back == ("out",)


@pytest.mark.slow
def test_what_lives_on_is_compared(tmp_path: Path) -> None:
    job = job_of("ttl", tmp_path, Later)
    found = verify(job.flow, after=job.before, until=job.until, checkpoints=job.folder)
    assert found.differences[0].what.startswith("state 'seen' of key group=")
