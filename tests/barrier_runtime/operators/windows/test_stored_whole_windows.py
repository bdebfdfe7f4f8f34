"""Whole windows whose state an older release has stored, in chunks alone, go on with their rows.

The archive is the checkpoints of `run(folder, fails=True)` by the release of that commit.
"""

from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Tumbling
from barrier_runtime.launch.outcome import JobFailed
from tests.unpacked import unpack

ARCHIVE = Path(__file__).resolve().parents[3] / "stored" / "77e61a9-whole-windows.tar.xz"
ROWS, KEYS, STEP = 4_000, 23, timedelta(milliseconds=10)  # of event time between two rows
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
WINDOW = timedelta(seconds=10)
ROW = {"k": int, "t": pa.timestamp("ms", "UTC"), "v": int, "s": str}
Rows = list[dict[str, Any]]


def run(folder: Path, fails: bool = False, parallelism: int = 2) -> tuple[Rows, Rows]:
    """Returns the results of `apply` and `top`. `fails`: the job fails after some checkpoints."""
    log = folder / "whole" / "log"

    def at(row: dict[str, int]) -> dict[str, Any]:
        number = row["value"]
        if fails and number % 50 == 0 and len(list(log.iterdir())) > 3:
            raise ValueError("enough")
        return {"k": number % KEYS, "t": START + number * STEP, "v": number * 7 % 1_000, "s": f"{number}{'!' * fails}"}

    flow, applied, ranked = Dataflow("whole"), CollectSink(), CollectSink()
    numbers = flow.rate("numbers", 1_000 if fails else 1_000_000, ROWS, splits=1)
    keyed = numbers.map(at, schema=ROW).with_watermarks("t").key_by("k")
    texts = keyed.window("applied", Tumbling(WINDOW), event_time="t")
    texts.apply(
        lambda key, window, table: {
            "k": key,
            "start": window.start_ms,
            "rows": " ".join(table.column("s").to_pylist()),
        },
        schema={"k": int, "start": int, "rows": str},
    ).sink("texts", applied)
    keyed.window("ranked", Tumbling(WINDOW), event_time="t").top(3, by="v").sink("ranks", ranked)
    with pytest.raises(JobFailed, match="enough") if fails else nullcontext():
        flow.run_local(
            checkpoints=str(folder), checkpoint_interval=0.05, restart="none", parallelism=parallelism, unaligned=fails
        )
    return applied.rows(), ranked.rows()


@pytest.mark.parametrize("parallelism", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_windows_that_are_open_in_an_older_checkpoint_have_all_of_their_rows(tmp_path: Path, parallelism: int) -> None:
    unpack(ARCHIVE, tmp_path)
    texts, ranks = run(tmp_path, parallelism=parallelism)
    stored = {int(row[:-1]) for text in texts for row in text["rows"].split() if row.endswith("!")}
    assert len(stored) > 10 * KEYS  # several chunks of each window
    expected_texts, expected_ranks = [], []
    for first in range(0, ROWS, WINDOW // STEP):
        start = START + first * STEP
        for key in range(KEYS):
            its = [number for number in range(first, first + WINDOW // STEP) if number % KEYS == key]
            text = " ".join(f"{number}{'!' * (number in stored)}" for number in its)
            expected_texts.append((start.timestamp() * 1_000, key, text))
            values = sorted((number * 7 % 1_000 for number in its), reverse=True)[:3]
            expected_ranks += [(start, key, rank, value) for rank, value in enumerate(values, 1)]
    assert sorted((row["start"], row["k"], row["rows"]) for row in texts) == expected_texts
    assert sorted((row["window_start"], row["k"], row["rank"], row["v"]) for row in ranks) == expected_ranks
