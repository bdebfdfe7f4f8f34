"""Late rows that nothing reads: a warning at the first, and their number in the result, in the line, and in `why`."""

import logging
from datetime import datetime, timedelta, timezone

import pytest

from barrier_runtime import CollectSink, Dataflow, Stream, Tumbling, count
from barrier_runtime.coordinator.status.why.job import why_rows_are_missing
from barrier_runtime.launch.outcome import JobResult

TIMES = [0, 10, 5_000, 1, 2, 9_000, 3]  # seconds; three rows come after their windows of a minute are over
SCHEMA = {"k": str, "at": datetime}
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def read(flow: Dataflow, name: str) -> Stream:
    rows = [{"k": "a", "at": START + timedelta(seconds=seconds)} for seconds in TIMES]
    return flow.from_iterator(name, lambda part, of: rows, schema=SCHEMA, splits=1, event_time="at")


def windows(late: bool = False) -> JobResult:
    flow = Dataflow("late")
    rows = read(flow, "rows").key_by("k")
    window = rows.window("minutes", Tumbling(timedelta(minutes=1)), event_time="at")
    if late:
        results, kept = window.aggregate(n=count(), late=True)
        kept.sink("kept", CollectSink())
    else:
        results = window.aggregate(n=count())
    results.sink("out", CollectSink())
    return flow.run_local()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "late row" in record.message]


@pytest.mark.slow
def test_dropped_late_rows_are_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = windows()
    assert result.late_rows == {"minutes": 3}
    assert str(result).endswith("; 3 rows too late for 'minutes' dropped (late=True keeps such rows)")
    (told,) = warnings_of(caplog)
    assert "minutes" in told
    assert "its event time is 2026-01-01 00:00:01.000 UTC, the watermark was 2026-01-01 01:23:19.999 UTC" in told
    reason = why_rows_are_missing(result.status)
    assert reason is not None
    assert reason.cause == "late_rows"
    assert "3 rows too late for 'minutes'" in reason.sentence
    assert reason.evidence == ("3 of 7 rows read",)


def test_late_rows_that_a_stream_takes_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = windows(late=True)
    assert result.late_rows == {}
    assert "late" not in str(result).replace("job late", "")
    assert not warnings_of(caplog)
    assert why_rows_are_missing(result.status) is None
