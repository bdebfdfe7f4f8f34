"""Windows of another size or offset than in the restored state are refused before the run begins."""

from collections import Counter
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Tumbling, count
from barrier_runtime.launch.outcome import JobFailed

ROWS, STEP = 4_000, timedelta(milliseconds=10)  # of event time between two rows
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)


def run(folder: Path, window: Tumbling, fails: bool = False) -> list[dict[str, Any]]:
    """Returns the collected rows. `fails`: the job fails after some checkpoints."""
    log = folder / "windowed" / "log"

    def at(row: dict[str, int]) -> dict[str, Any]:
        number = row["value"]
        if fails and number % 50 == 0 and len(list(log.iterdir())) > 3:
            raise ValueError("enough")
        return {"k": number % 2, "t": START + number * STEP}

    flow, sink = Dataflow("windowed"), CollectSink()
    numbers = flow.rate("numbers", 2_000 if fails else 1_000_000, ROWS, splits=1)
    rows = numbers.map(at, schema={"k": int, "t": pa.timestamp("ms", "UTC")}).with_watermarks("t")
    rows.key_by("k").window("per-second", window, event_time="t").aggregate(n=count()).sink("out", sink)
    with pytest.raises(JobFailed, match="enough") if fails else nullcontext():
        flow.run_local(checkpoints=str(folder), checkpoint_interval=0.05, restart="none")
    return sink.rows()


def test_changed_size_or_offset_is_refused_before_the_run_and_the_old_continues(
    tmp_path: Path,
) -> None:
    """R5: the state contains only starts of windows, so the new windows would adopt the old state."""
    collected = run(tmp_path, Tumbling(SECOND), fails=True)
    records = sorted(path.name for path in (tmp_path / "windowed" / "log").iterdir())
    for other, shown in (
        (Tumbling(5 * SECOND), "tumbling 0:00:05"),
        (Tumbling(SECOND, SECOND / 4), r"tumbling 0:00:01 \+ 0:00:00.250000"),
    ):
        with pytest.raises(
            JobFailed, match=rf"'per-second' as tumbling 0:00:01, but .* as {shown}, .* new name.* allow_non_restored"
        ):
            run(tmp_path, other)
    assert sorted(path.name for path in (tmp_path / "windowed" / "log").iterdir()) == records
    collected += run(tmp_path, Tumbling(SECOND))
    rows = Counter((number % 2, START + number * STEP // SECOND * SECOND) for number in range(ROWS))
    assert sorted((row["k"], row["window_start"], row["n"]) for row in collected) == sorted(
        (key, start, n) for (key, start), n in rows.items()
    )
