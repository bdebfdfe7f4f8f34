"""Whole numbers that look like seconds as event times are logged, once per subtask of a source or step."""

from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, Tumbling, count

SECONDS = 1_767_225_600  # of 2026


def warnings_of(caplog: pytest.LogCaptureFixture, first: int, at_source: bool) -> list[str]:
    rows: list[Any] = [{"k": 1, "at": first + i} for i in range(50)]
    flow = Dataflow("units")
    options: Any = {"event_time": "at"} if at_source else {}
    read = flow.from_iterator("in", lambda i, n: rows, schema={"k": int, "at": int}, splits=1, **options)
    timed = read if at_source else read.map(dict, schema={"k": int, "at": int}).with_watermarks("at")
    timed.key_by("k").window("w", Tumbling(3600), event_time="at").aggregate(n=count()).sink("out", CollectSink())
    flow.run_local(parallelism=1)
    return [record.getMessage() for record in caplog.records if "is taken as milliseconds" in record.getMessage()]


@pytest.mark.parametrize(("at_source", "where"), [(True, "source 'in'"), (False, "with_watermarks")])
def test_seconds_are_doubted_once_with_the_remedy(
    caplog: pytest.LogCaptureFixture, at_source: bool, where: str
) -> None:
    (told,) = warnings_of(caplog, SECONDS, at_source)
    assert told.startswith(where)
    assert f"the event time {SECONDS} in column 'at'" in told
    assert "timestamp_seconds(at)" in told


@pytest.mark.parametrize("at_source", [True, False])
@pytest.mark.parametrize("first", [0, 1_000, SECONDS * 1_000])
def test_milliseconds_and_small_numbers_are_not_doubted(
    caplog: pytest.LogCaptureFixture, at_source: bool, first: int
) -> None:
    assert warnings_of(caplog, first, at_source) == []
