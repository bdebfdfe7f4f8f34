"""Runs `make run EXAMPLE=…` as a user does: each example between real servers, with the example's kills."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.run_stages import STAGES

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def run_example(example: str, seconds: int, folder: Path) -> dict[str, Any]:
    """Starts an example as a user does and feeds the example for `seconds`. Returns the summary."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.run_example", example, "--seconds", str(seconds)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    summary: dict[str, Any] = json.loads((folder / "build" / "run" / "summary.json").read_text())
    return summary


@pytest.mark.long(70)
@pytest.mark.parametrize("example", sorted(STAGES))
def test_an_example_survives_its_kills_and_gives_the_right_result(example: str, tmp_path: Path) -> None:
    """R3, T10: slot, coordinator and every server are killed; each row of the result is compared with the truth."""
    summary = run_example(example, 8, tmp_path)
    assert (summary["lost"], summary["duplicated"], summary["mismatched"]) == (0, 0, 0)
    assert summary["matches_batch"]
    assert summary["windows"] > 3_000
    assert summary["slot_kills"] == summary["coordinator_kills"] == 1
    assert summary["server_kills"] == (2 if example in ("fraud", "kafka_to_postgres") else 1)
    assert summary["visible_latency_ms"]["p50"] > 0


@pytest.mark.parametrize("example", sorted(STAGES))
def test_an_example_is_short(example: str) -> None:
    most = {"fraud": 180, "bids": 150}.get(example, 50)  # row classes, four kinds of state, a lookup; four results
    assert len((ROOT / "examples" / f"{example}.py").read_text().splitlines()) <= most


@pytest.mark.long(70)
def test_a_job_grows_is_replaced_forked_and_read_as_a_table(tmp_path: Path) -> None:
    """The changes of a running job, as a user makes them: no row is lost, doubled, wrong or read twice."""
    summary = run_example("grow", 10, tmp_path)
    assert [summary[name] for name in ("lost", "doubled", "wrong", "replayed")] == [0, 0, 0, 0]
    assert summary["records"] == 60_000
    assert summary["state_rows"] == 1_000
    assert summary["rescale_pause_ms"] > 0
    assert summary["replace_pause_ms"] > 0
