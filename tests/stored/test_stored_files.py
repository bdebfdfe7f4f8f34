"""Files stored by earlier releases are restored, exactly once: logs, manifests, RocksDB files, segments, commits.

Each archive is the folder of a job that was killed with SIGKILL: `program.py` run by the release of that commit, with
two subtasks, transactions committed and pending, and (unaligned) rows in flight. One archive is of a job that was
stopped with a savepoint, on Spark, without the checkpoints.
"""

import csv
import json
import os
import runpy
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from stored_rows import rows

from barrier_runtime import Dataflow
from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.state.store.open import open_store
from tests.unpacked import unpack
from tests.waiting import until as come_about

HERE = Path(__file__).resolve().parent
WINDOW_MS = 7_000

pytestmark = pytest.mark.slow


class Job:
    """A stored job in a private folder."""

    def __init__(self, archive: Path, folder: Path) -> None:
        unpack(archive, folder)
        self.folder = folder
        (folder / "may-commit").touch()

    def program(self, name: str = "stored") -> Dataflow:
        """The flow of `program.py` on this folder, with fresh classes."""
        own = {"BARRIER_STORED": str(self.folder), "BARRIER_STORED_NAME": name}
        with patch.dict(os.environ, own):
            return runpy.run_path(str(HERE / "program.py"))["flow"]  # type: ignore[no-any-return]

    def go_on(
        self, parallelism: int, unaligned: bool, until: Callable[[], bool], name: str = "stored", **more: Any
    ) -> None:
        """Runs the job by the present release until `until`, then stops the job. `more`: options."""
        for later in (self.folder / "later").iterdir():
            later.rename(self.folder / "watched" / later.name)
        options: dict[str, Any] = {"parallelism": parallelism, "checkpoint_interval": 0.2, "unaligned": unaligned}
        options |= {"checkpoints": str(self.folder / "checkpoints"), **more}
        with self.program(name).start_local(**options) as job:
            come_about(lambda: until() or job.done, "every row to be visible", 240)
            job.stop()
            job.wait(120)
        assert until()

    def visible(self, sink: str) -> list[dict[str, Any]]:
        """The visible rows of the job, and of a job that continued from the job's savepoint."""
        store = open_store(str(self.folder / "out" / sink))
        found: list[dict[str, Any]] = []
        records = [each for job in ("stored", "next") for each in read_commit_log(store, job, f"{sink}-out")]
        for record in records:
            for file in record.files:
                lines = store.get(file.name).decode().splitlines()
                found += csv.DictReader(lines) if file.name.endswith(".csv") else map(json.loads, lines)
        return found


FIXED = list(rows("fixed"))
PER_KEY = Counter(row["k"] for row in FIXED)
IDS = {row["n"] for row in rows("watched")}


def at_ms(row: dict[str, Any]) -> int:
    return round(datetime.fromisoformat(row["at"]).replace(tzinfo=timezone.utc).timestamp() * 1000)


@cache
def windows() -> dict[tuple[int, int], tuple[int, int, float, float, float]]:
    """Key and start in ms → n, total, low, high, mid; computed in plain Python."""
    members = defaultdict(list)
    for row in FIXED:
        members[row["k"], at_ms(row) // WINDOW_MS * WINDOW_MS].append(row)
    return {
        window: (
            len(them),
            sum(row["n"] for row in them),
            min(row["x"] for row in them),
            max(row["x"] for row in them),
            sum(row["n"] for row in them) / len(them),
        )
        for window, them in members.items()
    }


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("kind", ["aligned", "unaligned"])
def test_a_job_killed_under_an_earlier_release_goes_on_exactly_once(
    kind: str, parallelism: int, tmp_path: Path
) -> None:
    job = Job(HERE / f"f69d69f-{kind}.tar.xz", tmp_path)
    job.go_on(parallelism, kind == "unaligned", lambda: all_there(job))
    check_each_once(job)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_savepoint_of_an_earlier_release_begins_another_job_exactly_once(parallelism: int, tmp_path: Path) -> None:
    """1.10: of f185c63, the first build that had savepoints."""
    job = Job(HERE / "f185c63-savepoint.tar.xz", tmp_path)
    before = len(job.visible("quiet"))
    assert 0 < before < len(FIXED)
    job.go_on(parallelism, False, lambda: all_there(job), name="next", restore=str(tmp_path / "savepoint"))
    check_each_once(job)


def all_there(job: Job) -> bool:
    quiet = [row for row in job.visible("quiet") if row["what"] == "row"]
    return (
        len(quiet) >= len(FIXED)
        and len(job.visible("running")) >= len(FIXED)
        and len(job.visible("once")) >= len(IDS)
        and len(job.visible("windows")) >= len(windows())
    )


def check_each_once(job: Job) -> None:
    quiet = [row for row in job.visible("quiet") if row["what"] == "row"]
    assert sorted(row["n"] for row in quiet) == sorted(row["n"] for row in FIXED)
    assert sorted((row["k"], row["seen"]) for row in quiet) == [
        (key, number) for key in sorted(PER_KEY) for number in range(1, PER_KEY[key] + 1)
    ]
    assert sorted(row["n"] for row in job.visible("once")) == sorted(IDS)
    running = job.visible("running")
    assert sorted((int(row["k"]), int(row["rows"])) for row in running) == [
        (key, number) for key in sorted(PER_KEY) for number in range(1, PER_KEY[key] + 1)
    ]
    last = {int(row["k"]): row for row in running if int(row["rows"]) == PER_KEY[int(row["k"])]}
    for key, row in last.items():
        total = sum(row["n"] for row in FIXED if row["k"] == key)
        assert (int(row["total"]), float(row["mid"])) == (total, total / PER_KEY[key])
    found = [
        ((row["k"], start_of(row)), (row["n"], row["total"], row["low"], row["high"], row["mid"]))
        for row in job.visible("windows")
    ]
    assert sorted(found) == sorted(windows().items())


def start_of(row: dict[str, Any]) -> int:
    return at_ms({"at": row["window_start"].replace("Z", "")})
