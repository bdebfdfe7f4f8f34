"""Watermarks of a user's class: row by row, independent of batch borders, never decreasing, and with invalid values
refused.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import CollectSink, Dataflow, JobFailed, Tumbling, WatermarkGenerator, count
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.watermark_generator import GeneratedWatermarkOperator
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from tests.barrier_runtime.operator_harness import Driven
from tests.drawn import examples

Ints = npt.NDArray[np.int64]
TIMES = pa.schema([("t", pa.int64())])


class AsLateAsEver(WatermarkGenerator):
    """Watermark that trails the greatest time by the greatest lateness so far."""

    greatest, behind = -(2**40), 0

    def watermarks(self, times: Ints) -> Ints:
        greatest = np.maximum(np.maximum.accumulate(times), self.greatest)
        behind = np.maximum(np.maximum.accumulate(greatest - times), self.behind)
        self.greatest, self.behind = int(greatest[-1]), int(behind[-1])
        return greatest - behind


def driven(make: Callable[[], Any] = AsLateAsEver) -> Driven:
    return Driven(GeneratedWatermarkOperator("w", "t", make))


def feed(it: Driven, *times: int | None) -> None:
    it.feed([{"t": time} for time in times], TIMES)


def reached(it: Driven) -> list[int]:
    """Returns the watermark at each row; a batch without `reached` keeps the last watermark."""
    found: list[int] = []
    for batch in it.batches:
        last = found[-1:] or [WATERMARK_MIN]
        found += last * len(batch) if batch.reached is None else batch.reached.tolist()
    return found


def one_by_one(times: list[int | None]) -> list[int]:
    """The watermark at each row."""
    greatest, behind, watermark, told = None, 0, WATERMARK_MIN, []
    for time in times:
        if time is not None:
            greatest = time if greatest is None else max(greatest, time)
            behind = max(behind, greatest - time)
            watermark = max(watermark, greatest - behind)
        told.append(watermark)
    return told


@examples(60)
@given(times=st.lists(st.none() | st.integers(0, 1_000), max_size=60), data=st.data())
def test_each_row_has_the_watermark_of_the_generator_wherever_batches_end(
    times: list[int | None], data: st.DataObject
) -> None:
    it, at = driven(), 0
    while at < len(times):
        end = at + data.draw(st.integers(1, len(times) - at))
        feed(it, *times[at:end])
        at = end
    wanted = one_by_one(times)
    got = reached(it)
    known = [number for number, watermark in enumerate(wanted) if watermark > WATERMARK_MIN]
    assert [got[number] for number in known] == [wanted[number] for number in known]
    assert it.operator.own_watermark() == (wanted[-1] if known else None)
    assert [row["t"] for row in it.rows] == times


def test_the_watermark_never_goes_back_and_ends_only_with_the_input() -> None:
    class Given(WatermarkGenerator):
        def watermarks(self, times: Ints) -> Ints:
            return times

    it = driven(Given)
    assert it.operator.own_watermark() is None
    feed(it, 50, 20, None, 60)
    feed(it, 10)
    feed(it, None)
    assert [list(batch.reached) for batch in it.batches if batch.reached is not None] == [[50, 50, 50, 60], [60]]
    assert it.operator.own_watermark() == 60
    feed(it, WATERMARK_MAX)
    assert it.operator.own_watermark() == WATERMARK_MAX - 1


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda times: None, "gave None for 2 rows"),
        (lambda times: times[:1], r"gave int64 of shape \(1,\) for 2 rows"),
        (lambda times: times / 2, r"gave float64 of shape \(2,\) for 2 rows"),
    ],
)
def test_what_is_no_watermark_at_each_row_is_refused_with_what_to_return(gives: Any, said: str) -> None:
    class Wrong(WatermarkGenerator):
        def watermarks(self, times: Ints) -> Ints:
            return gives(times)  # type: ignore[no-any-return]

    it = driven(Wrong)
    with pytest.raises(InvalidJob, match=rf"Wrong.watermarks\(\) {said}: return a numpy array of int64"):
        feed(it, 1, 2)


def test_what_a_generator_raises_is_told_with_its_name_and_the_batch() -> None:
    class Failing(WatermarkGenerator):
        def watermarks(self, times: Ints) -> Ints:
            raise RuntimeError("no idea")

    with pytest.raises(UserCodeError, match=r"(?s)Failing.watermarks\(\) of operator 'w', .*no idea.*2 rows of t"):
        feed(driven(Failing), 1, 2)


def test_what_is_made_must_be_a_generator() -> None:
    with pytest.raises(InvalidJob, match="generator= made 7: pass a subclass of WatermarkGenerator"):
        driven(lambda: 7)


def test_a_generator_cannot_change_the_rows() -> None:
    class Changing(WatermarkGenerator):
        def watermarks(self, times: Ints) -> Ints:
            times += 1_000
            return times

    it = driven(Changing)
    feed(it, 1)
    assert it.rows == [{"t": 1}]


# ---------------------------------------------------------------- in jobs

ROWS = [{"k": n % 3, "at": n * 10 - (n % 7) * 30} for n in range(300)]


def rows(flow: Dataflow) -> Any:
    return flow.from_iterator("rows", lambda part, of: ROWS, schema={"k": int, "at": int}, splits=1)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_of_a_job_go_by_its_watermarks_and_no_row_is_late(parallelism: int) -> None:
    class Patient(AsLateAsEver):
        behind = 181

    flow, out, late = Dataflow("own"), CollectSink(), CollectSink()
    windows = rows(flow).with_watermarks("at", generator=Patient).key_by("k")
    counted, too_late = windows.window("w", Tumbling(timedelta(milliseconds=100)), event_time="at").aggregate(
        late=True, n=count()
    )
    counted.sink("out", out)
    too_late.sink("late", late)
    flow.run_local(parallelism=parallelism)
    assert late.rows() == []
    assert sum(row["n"] for row in out.rows()) == len(ROWS)
    assert len({(row["k"], row["window_start"]) for row in out.rows()}) == len(out.rows())


def test_rows_behind_its_watermarks_are_late() -> None:
    class Hasty(WatermarkGenerator):
        def watermarks(self, times: Ints) -> Ints:
            return times + 1_000_000

    flow, late = Dataflow("hasty"), CollectSink()
    windows = rows(flow).with_watermarks("at", generator=Hasty).key_by("k")
    counted, too_late = windows.window("w", Tumbling(timedelta(milliseconds=100)), event_time="at").aggregate(
        late=True, n=count()
    )
    counted.sink("out", CollectSink())
    too_late.sink("late", late)
    flow.run_local(parallelism=1)
    assert len(late.rows()) == len(ROWS)


def test_a_generator_that_fails_ends_the_job_with_its_message() -> None:
    class Failing(WatermarkGenerator):
        def watermarks(self, times: Ints) -> Ints:
            raise RuntimeError("no idea")

    flow = Dataflow("failing")
    rows(flow).with_watermarks("at", generator=Failing).sink("out", CollectSink())
    with pytest.raises(JobFailed, match="no idea"):
        flow.run_local(parallelism=1, restart="none")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"generator": AsLateAsEver()}, "generator=<AsLateAsEver>: give a function or None"),
        ({"generator": 3}, "generator=3: give a function or None"),
        ({"generator": dict}, "generator=dict: derive it from WatermarkGenerator"),
        ({"generator": AsLateAsEver, "max_out_of_orderness": timedelta(seconds=1)}, "leave the other out"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_flow_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        rows(Dataflow("f")).with_watermarks("at", **options)
