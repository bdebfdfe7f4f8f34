"""Windows of results of windows: the numbers of the rows themselves, or a warning that names both windows."""

import warnings
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from barrier_runtime import Calendar, CollectSink, Dataflow, InvalidJob, Session, Sliding, Stream, Tumbling, count, sum_
from barrier_runtime.launch.outcome import JobFailed

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BEGINS = datetime(2026, 3, 25, tzinfo=UTC), datetime(2026, 10, 21, tzinfo=UTC)  # clocks change four days later
ROWS = [{"k": "abc"[n % 3], "at": begin + n * timedelta(minutes=37)} for begin in BEGINS for n in range(470)]


def pairs_of(zone: str) -> list[tuple[Any, Any]]:
    day, week, month = (Calendar(every, zone) for every in ("day", "week", "month"))
    return [
        *((Tumbling(HOUR), later) for later in (day, week, month)),
        (day, day),
        (week, week),
        (month, month),
        (day, week),
        (day, month),
    ]


MONDAY = Tumbling(7 * DAY, offset=4 * DAY)
FIXED = [
    (Tumbling(DAY), Calendar("day", "UTC")),
    (Tumbling(DAY), Calendar("month", "UTC")),
    (MONDAY, Calendar("week", "UTC")),
    (Calendar("week", "UTC"), MONDAY),
    (Calendar("day", "UTC"), Tumbling(7 * DAY)),
    (Calendar("day", "Etc/UTC"), Calendar("month", "UTC")),
    (Calendar("day", "Etc/GMT-3"), Tumbling(DAY, offset=-3 * HOUR)),
    (Tumbling(HOUR), Tumbling(DAY)),
    (Tumbling(HOUR), Sliding(DAY, HOUR)),
    (Tumbling(HOUR / 2), Calendar("day", "Asia/Kolkata")),
    (Tumbling(HOUR, offset=HOUR / 2), Calendar("day", "Asia/Kolkata")),
]
PAIRS = {"UTC": pairs_of("UTC"), "Europe/Berlin": pairs_of("Europe/Berlin"), "fixed": FIXED}


def labels(window: Any, time: datetime) -> list[Any]:
    """Windows of a time, by arithmetic on local dates."""
    if isinstance(window, Calendar):
        date = time.astimezone(ZoneInfo(window.zone)).date()
        if window.every == "week":
            return [date - date.weekday() * DAY]
        return [date if window.every == "day" else (date.year, date.month)]
    step: Any = window.slide if isinstance(window, Sliding) else window.size
    last = time - (time - EPOCH - window.offset) % step
    return [last - n * step for n in range(window.size // step)]


def label(window: Any, start: datetime) -> Any:
    return start if isinstance(window, Sliding) else labels(window, start)[0]


def read(flow: Dataflow) -> Stream:
    return flow.from_iterator(
        "rows", lambda part, of: ROWS, schema={"k": str, "at": datetime}, splits=1, event_time="at"
    )


def rolled(rows: Stream, name: str, first: Any, later: Any, **time: Any) -> tuple[Stream, Stream]:
    results = rows.key_by("k").window(f"{name}-first", first).aggregate(n=count())
    by_key = results.with_columns(twice="n * 2").key_by("k").window(f"{name}-later", later, **time)
    every = results.filter("n > 0").window_all(f"{name}-all", later, **time)
    return by_key.aggregate(n=sum_("n")), every.aggregate(n=sum_("n"))


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("zone", PAIRS)
def test_windows_that_contain_the_earlier_ones_have_the_numbers_of_the_rows(zone: str, parallelism: int) -> None:
    flow, sinks = Dataflow("roll-ups"), []
    rows = read(flow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (first, later) in enumerate(PAIRS[zone]):
            outs = CollectSink(), CollectSink()
            for which, (stream, out) in enumerate(zip(rolled(rows, str(number), first, later), outs, strict=True)):
                stream.sink(f"out-{number}-{which}", out)
            sinks.append(outs)
    flow.run_local(parallelism=parallelism)
    for (first, later), outs in zip(PAIRS[zone], sinks, strict=True):
        for out, keyed in zip(outs, (True, False), strict=True):
            expected = Counter(
                (row["k"] if keyed else "", window) for row in ROWS for window in labels(later, row["at"])
            )
            found = [((row.get("k", ""), label(later, row["window_start"])), row["n"]) for row in out.rows()]
            assert sorted(found, key=repr) == sorted(expected.items(), key=repr), f"{first} in {later}"


def added(first: Any, later: Any, **time: Any) -> list[str]:
    """Returns the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rolled(read(Dataflow("told")), "w", first, later, **time)
    return [str(each.message) for each in told]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "later"),
    [
        (Tumbling(timedelta(minutes=25)), Tumbling(HOUR)),
        (Tumbling(HOUR), Tumbling(DAY, offset=HOUR / 2)),
        (Tumbling(HOUR), Calendar("day", "Asia/Kolkata")),
        (Tumbling(HOUR), Calendar("day", "Australia/Lord_Howe")),
        (Tumbling(DAY), Calendar("day", "Europe/Berlin")),
        (Tumbling(5 * HOUR), Calendar("day", "UTC")),
        (Tumbling(7 * DAY), Calendar("week", "UTC")),
        (Tumbling(2 * DAY), Calendar("month", "UTC")),
        (Calendar("week", "UTC"), Calendar("month", "UTC")),
        (Calendar("month", "UTC"), Calendar("day", "UTC")),
        (Calendar("day", "Europe/Berlin"), Calendar("day", "Europe/Paris")),
        (Calendar("day", "Europe/Berlin"), Tumbling(DAY)),
        (Sliding(2 * HOUR, HOUR), Tumbling(DAY)),
        (Sliding(2 * HOUR, HOUR), Calendar("day", "UTC")),
        (Session(HOUR), Calendar("day", "UTC")),
    ],
)
def test_other_windows_count_results_by_their_end_and_a_warning_names_both(first: Any, later: Any) -> None:
    told = added(first, later)
    assert len(told) == 2
    assert told[0].startswith(
        f"window 'w-later': the windows ({later}) do not contain the windows of the rows ({first}), so each result "
        "counts wholly in the window of the end."
    )
    assert told[0].endswith("or pass event_time='window_end' if this is meant")
    assert added(first, later, event_time="window_end") == []
    assert all("the watermark is of 'window_end'" in each for each in added(first, later, event_time="window_start"))


def test_the_start_may_be_named_or_renamed_and_a_missing_start_is_told() -> None:
    day, month = Calendar("day", "UTC"), Calendar("month", "UTC")
    assert added(day, month, event_time="window_start") == []
    days = read(Dataflow("renamed")).key_by("k").window("days", day).aggregate(n=count())
    renamed = days.rename(window_start="begin", window_end="end").key_by("k")._keyed_input()
    assert renamed.event_time("window 'w'", month) == "begin"
    with pytest.warns(UserWarning, match="without the column of their start.*Keep 'window_start', or pass event_time="):
        days.drop("window_start").window_all("m", month)


@pytest.mark.slow
@pytest.mark.parametrize("first", [Sliding(2 * HOUR, HOUR), Session(HOUR / 4)])
def test_sliding_windows_and_sessions_count_in_the_window_of_their_end(first: Any) -> None:
    flow, out, of_results = Dataflow("ends"), CollectSink(), CollectSink()
    results = read(flow).key_by("k").window("first", first).aggregate(n=count())
    results.sink("first-out", of_results)
    day = results.window_all("days", Calendar("day", "Europe/Berlin"), event_time="window_end")
    day.aggregate(n=sum_("n")).sink("out", out)
    flow.run_local(parallelism=2)
    berlin, expected = Calendar("day", "Europe/Berlin"), Counter[Any]()
    for row in of_results.rows():
        expected[label(berlin, row["window_end"])] += row["n"]
    assert {label(berlin, row["window_start"]): row["n"] for row in out.rows()} == expected


def run_until_checkpoints(folder: Path, first: Any, later: Any, **time: Any) -> None:
    """Runs an endless job, which fails after four more records of the log."""
    log = folder / "rolled" / "log"
    before = set(log.iterdir()) if log.exists() else set()

    def at(row: dict[str, int]) -> dict[str, Any]:
        if row["value"] % 50 == 49 and len(set(log.iterdir()) - before) > 3:
            raise ValueError("enough")
        return {"k": str(row["value"] % 2), "at": EPOCH + row["value"] * HOUR / 4}

    flow = Dataflow("rolled")
    numbers = flow.rate("numbers", 1_000, splits=1).map(at, schema={"k": str, "at": pa.timestamp("ms", "UTC")})
    results = numbers.with_watermarks("at").key_by("k").window("first", first, event_time="at").aggregate(n=count())
    results.window_all("all", later, **time).aggregate(n=sum_("n")).sink("out", CollectSink())
    flow.run_local(checkpoints=str(folder), checkpoint_interval=0.05, restart="none")


@pytest.mark.slow
def test_state_counted_by_the_end_is_refused_by_name_and_continues_by_the_end(tmp_path: Path) -> None:
    """Definitions with a named column are those of older builds, which counted by the end by default."""
    day = Calendar("day", "UTC")
    with pytest.raises(JobFailed, match="enough"):
        run_until_checkpoints(tmp_path, day, day, event_time="window_end")
    with pytest.raises(
        JobFailed, match=r"'all' as calendar day of UTC, but .* as calendar day of UTC, by window_start"
    ):
        run_until_checkpoints(tmp_path, day, day)
    with pytest.raises(JobFailed, match="enough"):
        run_until_checkpoints(tmp_path, day, day, event_time="window_end")


@pytest.mark.slow
def test_state_of_hours_in_days_continues_with_and_without_the_name_of_the_column(tmp_path: Path) -> None:
    for time in ({}, {"event_time": "window_start"}, {}):
        with pytest.raises(JobFailed, match="enough"):
            run_until_checkpoints(tmp_path, Tumbling(HOUR), Tumbling(DAY), **time)


@pytest.mark.parametrize("window", [Tumbling(DAY), Calendar("day", "Europe/Berlin")])
def test_top_behind_aggregate_is_of_the_same_windows(window: Any) -> None:
    flow, short, whole = Dataflow("top"), CollectSink(), CollectSink()
    counts = read(flow).key_by("k").window("days", window, event_time="at").aggregate(n=count())
    counts.top("best", 2, by="n").sink("short", short)
    counts.window_all("written-out", window, event_time="window_start").top(2, by="n").sink("whole", whole)
    flow.run_local(parallelism=2)
    assert len(short.rows()) > 40
    assert _ranks(short.rows()) == _ranks(whole.rows())


def _ranks(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Without the key: of keys with equal counts any may be first."""
    return sorted((row["window_start"], row["rank"], row["n"]) for row in rows)


@pytest.mark.parametrize("window", [None, Sliding(DAY, HOUR), Session(HOUR)])
def test_top_of_no_single_window_names_the_remedy(window: Any) -> None:
    rows = read(Dataflow("top"))
    if window is not None:
        rows = rows.key_by("k").window("w", window, event_time="at").aggregate(n=count())
    with pytest.raises(InvalidJob, match=r"top 'best': .*take .window_all\('best', Tumbling\(…\)\).top\(2, by='k'\)"):
        rows.top("best", 2, by="k")
